//! What code showed, as files: `1.png`, `1.html`, `2.svg`; the number counts the outputs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use api::EvalOutput;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The form that everything has.
pub(super) const TEXT: &str = "text/plain";
/// Forms, and how files of them end. Others are in `--json` only.
const ENDINGS: &[(&str, &str)] = &[
    (TEXT, "txt"),
    ("text/html", "html"),
    ("text/markdown", "md"),
    ("text/latex", "tex"),
    ("application/json", "json"),
    ("application/javascript", "js"),
    ("application/pdf", "pdf"),
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("image/gif", "gif"),
    ("image/svg+xml", "svg"),
];
/// Those that come in base64.
const BINARY: &[&str] = &["application/pdf", "image/png", "image/jpeg", "image/gif"];

/// Writes every form of every output that we know an ending for; which files there are now.
pub(super) fn write(outputs: &[EvalOutput], dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for (number, output) in (1..).zip(outputs) {
        for (mime, text) in &output.data {
            let Some((_, ending)) = ENDINGS.iter().find(|(known, _)| known == mime) else { continue };
            let file = dir.join(format!("{number}.{ending}"));
            let content = if BINARY.contains(&mime.as_str()) {
                let plain: String = text.split_ascii_whitespace().collect();
                STANDARD.decode(plain).with_context(|| format!("output {number} is not the {mime} it says"))?
            } else {
                text.clone().into_bytes()
            };
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
            fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
            written.push(file);
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use api::EvalOutputKind;

    use super::*;

    fn output(forms: &[(&str, &str)]) -> EvalOutput {
        let data = forms.iter().map(|(mime, text)| ((*mime).into(), (*text).into())).collect::<BTreeMap<_, _>>();
        EvalOutput { kind: EvalOutputKind::Display, data }
    }

    #[test]
    fn every_known_form_becomes_a_file() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("new");
        let shown = [
            output(&[("image/png", "iVBO\nRw0KGgo="), (TEXT, "<Figure>"), ("application/vnd.x", "?")]),
            output(&[("text/html", "<b>ü</b>")]),
        ];
        let written = write(&shown, &dir).unwrap();
        assert_eq!(written, ["1.png", "1.txt", "2.html"].map(|name| dir.join(name)));
        assert_eq!(fs::read(dir.join("1.png")).unwrap(), b"\x89PNG\r\n\x1a\n");
        assert_eq!(fs::read_to_string(dir.join("2.html")).unwrap(), "<b>ü</b>");
        assert_eq!(write(&[], &home.path().join("none")).unwrap(), Vec::<PathBuf>::new());
        assert!(!home.path().join("none").exists());
        let error = write(&[output(&[("image/png", "!")])], &dir).unwrap_err().to_string();
        assert_eq!(error, "output 1 is not the image/png it says");
    }
}
