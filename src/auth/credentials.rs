//! What a request brings along to say who sends it.

use std::sync::Arc;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

/// Where gRPC clients put their token.
const TOKEN: &str = "token";
/// Where HTTP clients put it.
const AUTHORIZATION: &str = "authorization";
/// Present on what comes through the JSON gateway, whose connection is not the client's own.
const JSON_GATEWAY: &str = "grpcgateway-accept";

/// The common name in the verified certificate of a connection's client. A listener with TLS puts
/// it among the extensions of each request, if client certificates are to name users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateName(pub Arc<str>);

/// A request's token and its connection's certificate name, unchecked.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    token: Option<MetadataValue<Ascii>>,
    name: Option<CertificateName>,
}

impl Credentials {
    /// Those of a request.
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        let metadata = request.metadata();
        let name = request.extensions().get::<CertificateName>().cloned();
        Self { token: token_in(metadata), name: name.filter(|_| !came_by_json(metadata)) }
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.token.is_none() && self.name.is_none()
    }

    /// The token, if there is one: `Some(None)` for one that is no text.
    pub fn token(&self) -> Option<Option<&str>> {
        let token = self.token.as_ref()?.to_str().ok();
        Some(token.map(|token| token.strip_prefix("Bearer ").unwrap_or(token)))
    }

    /// The name in the certificate.
    pub fn certificate_name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| &*name.0)
    }
}

fn token_in(metadata: &MetadataMap) -> Option<MetadataValue<Ascii>> {
    metadata.get(TOKEN).or_else(|| metadata.get(AUTHORIZATION)).cloned()
}

fn came_by_json(metadata: &MetadataMap) -> bool {
    metadata.contains_key(JSON_GATEWAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pairs: &[(&'static str, &str)]) -> tonic::Request<()> {
        let mut request = tonic::Request::new(());
        for (name, value) in pairs {
            request.metadata_mut().append(*name, value.parse().unwrap());
        }
        request
    }

    #[test]
    fn tokens_are_found_where_clients_put_them() {
        let token = |pairs: &[(&'static str, &str)]| {
            Credentials::of(&request(pairs)).token().map(|t| t.map(str::to_owned))
        };
        assert_eq!(token(&[]), None);
        assert_eq!(token(&[("token", "a")]), Some(Some("a".into())));
        assert_eq!(token(&[("token", "a"), ("token", "b")]), Some(Some("a".into())));
        assert_eq!(token(&[("authorization", "c")]), Some(Some("c".into())));
        assert_eq!(token(&[("authorization", "Bearer c")]), Some(Some("c".into())));
        assert_eq!(token(&[("authorization", "c"), ("token", "a")]), Some(Some("a".into())));
        assert_eq!(token(&[("token", "")]), Some(Some(String::new())));
    }

    #[test]
    fn certificates_name_users_except_through_the_json_gateway() {
        let name = |mut request: tonic::Request<()>| {
            request.extensions_mut().insert(CertificateName("ann".into()));
            Credentials::of(&request).certificate_name().map(str::to_owned)
        };
        assert_eq!(name(request(&[])), Some("ann".into()));
        assert_eq!(name(request(&[("grpcgateway-accept", "application/json")])), None);
        assert!(Credentials::of(&request(&[])).is_empty());
    }
}
