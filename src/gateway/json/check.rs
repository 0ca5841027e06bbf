//! What holds for any bytes: for the fuzz targets.

use super::parse::parse;
use super::print::print;
use super::scan::Scanner;
use leaseway_proto::schema::Message;

/// Takes `text` for requests of one shape. Their ends are the same however the text comes in pieces, and
/// what is read of them is written and read as the same again.
pub fn check_text(shape: &'static Message, text: &[u8]) {
    let whole = places(text, text.len().max(1));
    for size in [1, 7] {
        assert_eq!(places(text, size), whole, "in pieces of {size}");
    }
    for place in &whole.0 {
        if let Ok(message) = parse(shape, &text[place.clone()]) {
            // What was read is a message of this shape, so it has a spelling.
            let mut spelled = Vec::new();
            let printed = print(shape, &message, &mut spelled);
            assert!(printed.is_ok(), "what was read can't be written");
            again(shape, &spelled);
        }
        // Also what the scanner refuses to hand out must not hurt.
        let _ = parse(shape, &text[place.start..]);
    }
    let _ = parse(shape, text);
}

/// Takes `text` for one spelling of the message `wire`: it is read as that, and what is read of it is written and read as
/// the same again.
pub fn check_request(shape: &'static Message, text: &[u8], wire: &[u8]) {
    let shown = String::from_utf8_lossy(text);
    let read = parse(shape, text).unwrap_or_else(|error| panic!("{shown}: {error}"));
    let spell = |message: &[u8]| {
        let mut spelled = Vec::new();
        assert!(print(shape, message, &mut spelled).is_ok(), "{shown}: it can't be written");
        String::from_utf8_lossy(&spelled).into_owned()
    };
    assert_eq!(spell(&read), spell(wire), "{shown}");
    let again = parse(shape, spell(wire).as_bytes()).map(|again| spell(&again));
    assert_eq!(again, Ok(spell(wire)), "{shown}");
    check_text(shape, text);
}

/// Whether `text` is read as a request.
pub fn is_request(shape: &'static Message, text: &[u8]) -> bool {
    parse(shape, text).is_ok()
}

/// Takes `bytes` for a message in its wire encoding; if they are one, it reads back as it was written.
pub fn check_message(shape: &'static Message, bytes: &[u8]) {
    let mut spelled = Vec::new();
    if print(shape, bytes, &mut spelled).is_ok() {
        again(shape, &spelled);
    }
}

/// Reads what the printer wrote, and writes it again.
fn again(shape: &'static Message, spelled: &[u8]) {
    let place = Scanner::default().next(spelled, true);
    assert_eq!(place, Ok(Some(0..spelled.len())), "what is written is one value");
    // Deeper than requests may be, or with two members of a group of which one may be set.
    let Ok(read) = parse(shape, spelled) else { return };
    let mut twice = Vec::new();
    assert!(print(shape, &read, &mut twice).is_ok(), "what was read can't be written");
    assert_eq!(
        String::from_utf8_lossy(&twice),
        String::from_utf8_lossy(spelled),
        "what was written reads as something else"
    );
}

/// The places of all values, and the error that ends them.
fn places(text: &[u8], size: usize) -> (Vec<std::ops::Range<usize>>, Option<String>) {
    let (mut scanner, mut found, mut taken) = (Scanner::default(), Vec::new(), 0);
    let mut arrived = 0;
    loop {
        arrived = text.len().min(arrived + size);
        let ended = arrived == text.len();
        loop {
            match scanner.next(&text[taken..arrived], ended) {
                Ok(Some(place)) => {
                    found.push(taken + place.start..taken + place.end);
                    taken += place.end;
                }
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
        if ended {
            return (found, None);
        }
    }
}
