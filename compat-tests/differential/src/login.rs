//! Who asks: the line `as` of a sequence, and the tokens that the two servers give for it.

use leaseway_proto::etcdserverpb as pb;
use prost::Message;

use crate::client::{Answer, Client};
use crate::ops::Op;
use crate::report::Difference;
use crate::runner::Run;
use crate::schema::Schema;

/// Who sends what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// Nobody: no token is sent.
    Nobody,
    /// A user, by logging in. Nobody if that is refused.
    User {
        /// The name.
        name: String,
        /// The password.
        password: String,
    },
    /// Whoever brings this text as a token.
    Token(String),
}

impl Who {
    /// Reads what stands behind `as`.
    pub fn parse(text: &str) -> Result<Who, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["nobody"] => Ok(Who::Nobody),
            ["token", token] => Ok(Who::Token(token.to_owned())),
            [name, password] => {
                Ok(Who::User { name: name.to_owned(), password: password.to_owned() })
            }
            _ => Err("as takes `nobody`, `token TEXT` or `NAME PASSWORD`".into()),
        }
    }

    /// What stands behind `as`.
    pub fn to_text(&self) -> String {
        match self {
            Who::Nobody => "nobody".to_owned(),
            Who::Token(token) => format!("token {token}"),
            Who::User { name, password } => format!("{name} {password}"),
        }
    }
}

impl Run<'_> {
    /// Becomes somebody else on both servers; a login is compared like any call.
    pub async fn become_somebody(&mut self, op: &Op, who: &Who) -> Option<Difference> {
        let set = |client: &mut Client, token: Option<&str>| client.set_token(token);
        set(&mut self.pair.reference.client, None);
        set(&mut self.pair.subject.client, None);
        let (name, password) = match who {
            Who::Nobody => return None,
            Who::Token(token) => {
                set(&mut self.pair.reference.client, Some(token));
                set(&mut self.pair.subject.client, Some(token));
                return None;
            }
            Who::User { name, password } => (name.clone(), password.clone()),
        };
        let method = Schema::known("Auth.Authenticate");
        let request = method.request(&pb::AuthenticateRequest { name, password });
        let (left, right) = self.call(&method.path, &request, &method.output).await;
        if let (Some(reference), Some(subject)) = (token(&left), token(&right)) {
            set(&mut self.pair.reference.client, Some(&reference));
            set(&mut self.pair.subject.client, Some(&subject));
        }
        self.judge(op, left, right)
    }
}

fn token(answer: &Answer) -> Option<String> {
    let encoded = answer.message()?.encode_to_vec();
    pb::AuthenticateResponse::decode(encoded.as_slice()).ok().map(|response| response.token)
}
