//! As much of DER and PEM as finding a key in a file takes.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Tags of elements.
pub mod tag {
    pub const INTEGER: u8 = 0x02;
    pub const BIT_STRING: u8 = 0x03;
    pub const OCTET_STRING: u8 = 0x04;
    pub const OBJECT_ID: u8 = 0x06;
    pub const SEQUENCE: u8 = 0x30;
    /// `[0]`, explicit.
    pub const CONTEXT_0: u8 = 0xa0;
    /// `[1]`, explicit.
    pub const CONTEXT_1: u8 = 0xa1;
}

/// The blocks of a PEM file: label and content.
pub fn pem_blocks(text: &str) -> Vec<(String, Vec<u8>)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines().map(str::trim) {
        let marker = |word: &str| {
            line.strip_prefix("-----")?.strip_prefix(word)?.strip_suffix("-----").map(str::to_owned)
        };
        if let Some(label) = marker("BEGIN ") {
            open = Some((label, String::new()));
        } else if let Some(label) = marker("END ") {
            if let Some((begun, body)) = open.take().filter(|(begun, _)| *begun == label)
                && let Ok(content) = BASE64.decode(body)
            {
                blocks.push((begun, content));
            }
        } else if let Some((_, body)) = &mut open
            && !line.contains(':')
        {
            body.push_str(line);
        }
    }
    blocks
}

/// Reads elements one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Der<'a>(pub &'a [u8]);

impl<'a> Der<'a> {
    /// The next element: its tag and its content.
    pub fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(*first), rest),
            // More than four bytes of length are no key.
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((*tag, content))
    }

    /// The next element's content, if it has this tag.
    pub fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, content) = self.next()?;
        (found == tag).then_some(content)
    }

    /// The next element's content if it has this tag; otherwise nothing is read.
    pub fn optional(&mut self, tag: u8) -> Option<&'a [u8]> {
        let mut ahead = *self;
        let content = ahead.expect(tag)?;
        *self = ahead;
        Some(content)
    }

    /// The bytes of a bit string that has no unused bits.
    pub fn bit_string(&mut self) -> Option<&'a [u8]> {
        match self.expect(tag::BIT_STRING)?.split_first()? {
            (0, bytes) => Some(bytes),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements() {
        let mut der = Der(&[0x30, 3, 2, 1, 5, 0x04, 0x81, 1, 9, 3, 2, 0, 7]);
        let mut inside = Der(der.expect(tag::SEQUENCE).unwrap());
        assert_eq!(inside.optional(tag::BIT_STRING), None);
        assert_eq!(inside.expect(tag::INTEGER), Some(&[5][..]));
        assert!(inside.next().is_none());
        assert_eq!(der.expect(tag::OCTET_STRING), Some(&[9][..]));
        assert_eq!(der.bit_string(), Some(&[7][..]));
    }

    #[test]
    fn blocks() {
        let text = "junk\n-----BEGIN A-----\nProc-Type: 4\nAQID\n-----END A-----\n\
                    -----BEGIN B-----\nBA==\n-----END B-----\n-----BEGIN C-----\n!\n-----END C-----\n";
        let blocks = pem_blocks(text);
        assert_eq!(blocks, [("A".into(), vec![1, 2, 3]), ("B".into(), vec![4])]);
    }

    proptest! {
        #[test]
        fn nonsense_is_refused_not_fatal(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut der = Der(&bytes);
            while der.next().is_some() {}
            let _ = Der(&bytes).bit_string();
            let _ = pem_blocks(&String::from_utf8_lossy(&bytes));
        }
    }
}
