//! The token that goes with every call.

use std::sync::Arc;

use parking_lot::RwLock;
use tonic::metadata::{Ascii, MetadataValue};

use super::error::{Error, Kind};

/// A bearer token, which can be replaced while it's in use: clones share it.
#[derive(Clone)]
pub struct Token(Arc<RwLock<MetadataValue<Ascii>>>);

impl Token {
    /// A token; white space around it is not a part of it.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for what can't be in a header.
    pub fn new(text: &str) -> Result<Token, Error> {
        Ok(Token(Arc::new(RwLock::new(bearer(text)?))))
    }

    /// Uses another one from the next call on.
    ///
    /// # Errors
    /// As [`Token::new`]; the token stays what it was then.
    pub fn replace(&self, text: &str) -> Result<(), Error> {
        let value = bearer(text)?;
        *self.0.write() = value;
        Ok(())
    }

    pub(super) fn value(&self) -> MetadataValue<Ascii> {
        self.0.read().clone()
    }
}

fn bearer(text: &str) -> Result<MetadataValue<Ascii>, Error> {
    let text = text.trim();
    let value = format!("Bearer {text}").parse::<MetadataValue<Ascii>>().ok();
    let value = value.filter(|_| !text.is_empty() && !text.contains(char::is_whitespace));
    let mut value = value.ok_or_else(|| Error::new(Kind::Invalid, "oxia: no valid token"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_replaced_by_valid_ones_only() {
        let token = Token::new(" abc\n").expect("valid");
        let shared = token.clone();
        let now = || shared.value().to_str().map(str::to_owned).expect("text");
        assert_eq!(now(), "Bearer abc");
        for wrong in ["", " ", "a\nb", "a b", "\u{7f}"] {
            assert!(token.replace(wrong).is_err() && Token::new(wrong).is_err(), "{wrong:?}");
        }
        token.replace("def").expect("valid");
        assert_eq!(now(), "Bearer def");
        assert!(!format!("{:?}", shared.value()).contains("def"));
    }
}
