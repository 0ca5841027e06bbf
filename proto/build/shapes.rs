//! Writes the shapes of messages and methods as Rust constants, in the types of `src/schema.rs`.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    MethodDescriptorProto,
};
use std::fmt::Write;

/// Fields that a message may have: readers keep a bit for each.
const FIELDS_MAX: usize = 64;

/// The source text for all files of the set.
pub fn generate(files: &FileDescriptorSet) -> String {
    let mut out = String::new();
    let mut methods = String::new();
    for file in &files.file {
        let package = file.package();
        for shape in &file.enum_type {
            enumeration(&mut out, package, shape);
        }
        for shape in &file.message_type {
            message(&mut out, package, shape);
        }
        for service in &file.service {
            for shape in &service.method {
                method(&mut methods, &format!("{package}.{}", service.name()), shape);
            }
        }
    }
    write!(
        out,
        "/// Every method of every service.\npub static METHODS: &[Method] = &[{methods}];\n"
    )
    .expect("writing to a string");
    out
}

/// The constant's name for a message or enum, given with its package.
fn constant(name: &str) -> String {
    name.trim_start_matches('.').replace('.', "_").to_uppercase()
}

fn enumeration(out: &mut String, scope: &str, shape: &EnumDescriptorProto) {
    let name = format!("{scope}.{}", shape.name());
    let values: String = shape
        .value
        .iter()
        .map(|value| format!("({:?}, {}), ", value.name(), value.number()))
        .collect();
    writeln!(out, "#[allow(dead_code)]\nconst {}: &[(&str, i32)] = &[{values}];", constant(&name))
        .expect("writing to a string");
}

fn message(out: &mut String, scope: &str, shape: &DescriptorProto) {
    let name = format!("{scope}.{}", shape.name());
    assert!(shape.field.len() <= FIELDS_MAX, "{name} has more than {FIELDS_MAX} fields");
    for inner in &shape.enum_type {
        enumeration(out, &name, inner);
    }
    for inner in &shape.nested_type {
        message(out, &name, inner);
    }
    let fields: String = shape.field.iter().map(|field| describe(&name, shape, field)).collect();
    writeln!(
        out,
        "#[allow(dead_code)]\nstatic {}: Message = Message {{ name: {name:?}, fields: &[{fields}] }};",
        constant(&name)
    )
    .expect("writing to a string");
}

fn describe(message: &str, shape: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::Bool => "Kind::Bool".to_owned(),
        Type::Int32 => "Kind::Int32".to_owned(),
        Type::Int64 => "Kind::Int64".to_owned(),
        Type::Uint32 => "Kind::Uint32".to_owned(),
        Type::Uint64 => "Kind::Uint64".to_owned(),
        Type::String => "Kind::String".to_owned(),
        Type::Bytes => "Kind::Bytes".to_owned(),
        Type::Enum => format!("Kind::Enum({})", constant(field.type_name())),
        Type::Message => format!("Kind::Message(&{})", constant(field.type_name())),
        other => panic!("{message}.{} is of a type without a kind: {other:?}", field.name()),
    };
    let oneof = field.oneof_index.and_then(|index| {
        let oneof = shape.oneof_decl.get(usize::try_from(index).ok()?)?;
        Some(format!("Some(({index}, \"{message}.{}\"))", oneof.name()))
    });
    format!(
        "Field {{ number: {}, name: {:?}, json_name: {:?}, kind: {kind}, repeated: {}, oneof: {} }}, ",
        field.number(),
        field.name(),
        field.json_name(),
        field.label() == Label::Repeated,
        oneof.as_deref().unwrap_or("None"),
    )
}

fn method(out: &mut String, service: &str, shape: &MethodDescriptorProto) {
    write!(
        out,
        "Method {{ service: {service:?}, name: {:?}, request: &{}, answer: &{}, \
         many_requests: {}, many_answers: {} }}, ",
        shape.name(),
        constant(shape.input_type()),
        constant(shape.output_type()),
        shape.client_streaming(),
        shape.server_streaming(),
    )
    .expect("writing to a string");
}
