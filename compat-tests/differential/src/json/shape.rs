//! What a JSON text looks like apart from its values and spaces.

/// Names and punctuation as they are, with `s` for a string and `n` for a number, `true`, `false` or `null`.
/// For texts that are JSON.
pub fn of(text: &[u8]) -> String {
    let mut shape = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => at += 1,
            b'"' => {
                let end = end_of_string(text, at);
                let next = text[end..].iter().find(|byte| !byte.is_ascii_whitespace());
                match next {
                    Some(b':') => shape.extend_from_slice(&text[at..end]),
                    _ => shape.push(b's'),
                }
                at = end;
            }
            b'{' | b'}' | b'[' | b']' | b',' | b':' => {
                shape.push(byte);
                at += 1;
            }
            _ => {
                let is_inner = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                at += text[at..].iter().take_while(is_inner).count().max(1);
                shape.push(b'n');
            }
        }
    }
    String::from_utf8_lossy(&shape).into_owned()
}

fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_stay_and_values_go() {
        let text = br#" {"a\"b": [1, -2.5e+3, "x\":"], "c":true}"#;
        assert_eq!(super::of(text), r#"{"a\"b":[n,n,s],"c":n}"#);
        assert_eq!(super::of(b"\"open"), "s");
    }
}
