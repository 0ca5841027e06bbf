//! A transcript's text: steps of input, a line `----` and output up to an empty line, with comments
//! between them.

/// A piece of a transcript.
pub enum Part {
    /// An empty line or a comment.
    Text(String),
    /// Something that is done, and what it answers.
    Step {
        /// Number of its first line.
        line: usize,
        /// One or more lines, without the last line's end.
        input: String,
        /// Whole lines.
        output: String,
    },
}

const RULE: &str = "----";

/// Reads a transcript.
pub fn parse(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, first)) = lines.next() {
        if first.trim().is_empty() || first.starts_with('#') {
            parts.push(Part::Text(first.to_owned()));
            continue;
        }
        let mut input = first.to_owned();
        for (_, more) in lines.by_ref().take_while(|(_, line)| *line != RULE) {
            assert!(!more.trim().is_empty(), "line {}: no {RULE} behind it", number + 1);
            input += "\n";
            input += more;
        }
        let mut output = String::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.is_empty()) {
            output += line;
            output += "\n";
        }
        parts.push(Part::Step { line: number + 1, input, output });
    }
    parts
}

/// Writes a transcript.
pub fn render(parts: &[Part]) -> String {
    parts.iter().fold(String::new(), |text, part| match part {
        Part::Text(line) => text + line + "\n",
        Part::Step { input, output, .. } => text + input + "\n" + RULE + "\n" + output,
    })
}
