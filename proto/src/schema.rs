//! The shapes of etcd's messages as data, for what handles any of them.

/// A message.
#[derive(Debug)]
pub struct Message {
    /// With its package.
    pub name: &'static str,
    /// In the order of the contract; at most 64.
    pub fields: &'static [Field],
}

/// A field of a message.
#[derive(Debug)]
pub struct Field {
    /// On the wire.
    pub number: u32,
    /// In the contract.
    pub name: &'static str,
    /// In camel case.
    pub json_name: &'static str,
    /// What a value is.
    pub kind: Kind,
    /// Whether there are any number of values.
    pub repeated: bool,
    /// Position and name of the group of fields of which one may be set.
    pub oneof: Option<(u32, &'static str)>,
}

/// What values of a field are.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Bool,
    Int32,
    Int64,
    Uint32,
    Uint64,
    String,
    Bytes,
    /// Names and numbers of the values.
    Enum(&'static [(&'static str, i32)]),
    Message(&'static Message),
}

impl Kind {
    /// The name in the contract's language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Enum(_) => "enum",
            Self::Message(_) => "message",
        }
    }

    /// Whether a value is one number on the wire.
    pub fn is_varint(self) -> bool {
        !matches!(self, Self::String | Self::Bytes | Self::Message(_))
    }
}

/// A method of a service.
#[derive(Debug)]
pub struct Method {
    /// The service, with its package.
    pub service: &'static str,
    /// The method.
    pub name: &'static str,
    /// What it takes.
    pub request: &'static Message,
    /// What it gives.
    pub answer: &'static Message,
    /// Whether requests come as a stream.
    pub many_requests: bool,
    /// Whether answers go as a stream.
    pub many_answers: bool,
}

/// The message of this name, if a method takes or gives it.
pub fn find(name: &str) -> Option<&'static Message> {
    let all = METHODS.iter().flat_map(|method| [method.request, method.answer]);
    all.into_iter().find(|message| message.name == name)
}

include!(concat!(env!("OUT_DIR"), "/shapes.rs"));
