//! The sequences kept as files: written by hand for known behaviour, or found and shrunk.

use std::path::Path;

use crate::ops::Sequence;
use crate::report::Difference;

/// Reads all sequence files of a directory, in the order of their names.
pub fn load(dir: &Path) -> Result<Vec<Sequence>, String> {
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut paths: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// Reads one sequence file.
pub fn read(path: &Path) -> Result<Sequence, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    Sequence::parse(&name, &text)
}

/// Writes a found sequence, with what went wrong as its comment; returns the file's name.
pub fn keep(dir: &Path, sequence: &Sequence, difference: &Difference) -> Result<String, String> {
    let mut kept = sequence.clone();
    kept.comment = format!("{}\nFound by {}.", difference.signature(), sequence.name);
    let slug: String = difference
        .signature()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(60)
        .collect();
    let name = format!("found-{}.txt", slug.trim_matches('-'));
    let path = dir.join(&name);
    std::fs::write(&path, kept.to_text()).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    #[test]
    fn every_corpus_file_is_readable_and_in_normal_form() {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
        for sequence in super::load(&dir).unwrap() {
            assert!(!sequence.ops.is_empty(), "{} has no operations", sequence.name);
            assert!(!sequence.comment.is_empty(), "{} does not say why", sequence.name);
        }
    }
}
