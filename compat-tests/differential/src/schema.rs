//! The wire contract, read from its descriptors: which methods exist, and what they take and give.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

/// One method of one service.
#[derive(Debug)]
pub struct Method {
    /// `Service.Method`, as sequences write it.
    pub name: String,
    /// The HTTP/2 path of a call.
    pub path: String,
    /// The request's type.
    pub input: MessageDescriptor,
    /// The type of an answer, or of each answer of a stream.
    pub output: MessageDescriptor,
    /// Whether there is any number of answers.
    pub streams: bool,
}

/// All methods of the contract, by name.
#[derive(Debug)]
pub struct Schema {
    methods: BTreeMap<String, Method>,
}

impl Schema {
    /// The contract that this tester was built with.
    pub fn get() -> &'static Schema {
        static SCHEMA: OnceLock<Schema> = OnceLock::new();
        SCHEMA.get_or_init(|| {
            let bytes = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
            let pool = DescriptorPool::decode(bytes.as_slice()).expect("descriptors of the build");
            Schema { methods: pool.services().flat_map(|s| methods_of(&s)).collect() }
        })
    }

    /// The method called `Service.Method`.
    pub fn method(&'static self, name: &str) -> Option<&'static Method> {
        self.methods.get(name)
    }

    /// The method of an HTTP/2 path.
    pub fn at_path(&'static self, path: &str) -> Option<&'static Method> {
        self.methods.values().find(|method| method.path == path)
    }

    /// A method that the tester itself relies on.
    pub fn known(name: &str) -> &'static Method {
        Self::get().method(name).unwrap_or_else(|| panic!("the contract has no method {name}"))
    }
}

fn methods_of(service: &prost_reflect::ServiceDescriptor) -> Vec<(String, Method)> {
    let of = |m: prost_reflect::MethodDescriptor| {
        let name = format!("{}.{}", service.name(), m.name());
        let path = format!("/{}/{}", service.full_name(), m.name());
        let streams = m.is_server_streaming();
        (name.clone(), Method { name, path, input: m.input(), output: m.output(), streams })
    };
    service.methods().map(of).collect()
}

impl Method {
    /// A typed request as a dynamic one.
    pub fn request(&self, message: &impl Message) -> DynamicMessage {
        let bytes = message.encode_to_vec();
        DynamicMessage::decode(self.input.clone(), bytes.as_slice())
            .expect("a typed message is valid for its own descriptor")
    }
}
