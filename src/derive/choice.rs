//! Which files samples are made of.

use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};

use crate::error::{Error, ErrorKind, Result};

/// The endings of images, in either case.
const IMAGES: [&str; 3] = ["jpg", "jpeg", "png"];

/// As shells match paths: `*` stays in a directory, and `**` does not.
const RULES: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// Files by their paths below the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// `None`: all images.
    pattern: Option<Pattern>,
    /// The directories that all of them are in.
    top: PathBuf,
}

impl Choice {
    /// The files that match a pattern such as `train/**/*.JPEG`; without one all images.
    ///
    /// # Errors
    /// If it is no pattern.
    pub fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Ok(Choice { pattern: None, top: PathBuf::new() });
        }
        let wrong = |what: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Config, format!("the pattern {text:?}: {what}"))
                .hint("write it like \"train/**/*.JPEG\"; paths begin at the source")
        };
        let text = text.strip_prefix("./").unwrap_or(text);
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if !Path::new(text).components().all(is_plain) {
            return Err(wrong(&"it leads out of the source"));
        }
        if text.split('/').any(str::is_empty) {
            return Err(wrong(&"a name in it is empty, so no file has such a path"));
        }
        let pattern = Pattern::new(text).map_err(|error| wrong(&error))?;
        let is_name = |part: &&str| !part.contains(['*', '?', '[']);
        let mut parts: Vec<&str> = text.split('/').collect();
        // The last part is that of files.
        parts.pop();
        let top = parts.iter().take_while(|part| is_name(part)).collect();
        Ok(Choice { pattern: Some(pattern), top })
    }

    /// Whether a file is chosen.
    pub fn chooses(&self, path: &Path) -> bool {
        match &self.pattern {
            Some(pattern) => pattern.matches_path_with(path, RULES),
            None => path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| {
                IMAGES.iter().any(|image| image.eq_ignore_ascii_case(ending))
            }),
        }
    }

    /// Whether chosen files may be in a directory, or below it.
    pub fn may_be_below(&self, directory: &Path) -> bool {
        directory.starts_with(&self.top) || self.top.starts_with(directory)
    }
}
