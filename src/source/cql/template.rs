//! The pattern by which a row has a path.

/// Room for a path of usual length.
const LIKELY_BYTES: usize = 64;

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The value of one of the columns.
    Value(usize),
}

/// A pattern such as `{or_split}/{or_label}/{id}.JPEG`, with names of columns in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    parts: Vec<Part>,
    columns: Vec<String>,
}

impl Template {
    /// # Errors
    /// Why the text is no pattern.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut template = Template { parts: Vec::new(), columns: Vec::new() };
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, behind) = after.split_once('}').ok_or_else(|| "a { has no }".to_owned())?;
            template.add_text(before)?;
            template.add_column(name)?;
            rest = behind;
        }
        template.add_text(rest)?;
        match template.columns.is_empty() {
            true => Err("it names no column, as {id} does".to_owned()),
            false => Ok(template),
        }
    }

    fn add_text(&mut self, text: &str) -> Result<(), String> {
        if text.contains('}') {
            return Err("a } has no {".to_owned());
        }
        if !text.is_empty() {
            self.parts.push(Part::Text(text.to_owned()));
        }
        Ok(())
    }

    fn add_column(&mut self, name: &str) -> Result<(), String> {
        if name.is_empty() || name.contains('{') {
            return Err(format!("{{{name}}} names no column"));
        }
        let known = self.columns.iter().position(|known| known == name);
        self.parts.push(Part::Value(known.unwrap_or(self.columns.len())));
        if known.is_none() {
            self.columns.push(name.to_owned());
        }
        Ok(())
    }

    /// The columns whose values it needs, each once.
    pub(super) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The path of a row. `add` appends the value of a column, by its number.
    ///
    /// # Errors
    /// If a value cannot be appended, or why the kernel takes no such path.
    pub(super) fn fill(
        &self,
        add: impl Fn(usize, &mut String) -> Result<(), String>,
    ) -> Result<String, String> {
        let mut path = String::with_capacity(LIKELY_BYTES);
        for part in &self.parts {
            match part {
                Part::Text(text) => path.push_str(text),
                Part::Value(nth) => add(*nth, &mut path)?,
            }
        }
        let fault = path.split('/').find_map(|name| match name {
            "" => Some("has an empty name"),
            "." | ".." => Some("leads out of the tree"),
            name if name.contains('\0') => Some("has a zero byte"),
            _ => None,
        });
        match fault {
            Some(fault) => Err(format!("the path {path:?} {fault}")),
            None => Ok(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(template: &str, values: &[&str]) -> Result<String, String> {
        let add = |nth: usize, path: &mut String| {
            path.push_str(values[nth]);
            Ok(())
        };
        Template::parse(template).unwrap().fill(add)
    }

    #[test]
    fn rows_have_paths() {
        let template = Template::parse("{or_split}/{or_label}/{id}.JPEG").unwrap();
        assert_eq!(template.columns(), ["or_split", "or_label", "id"]);
        let path = fill("{or_split}/{or_label}/{id}.JPEG", &["train", "n01440764", "7"]);
        assert_eq!(path.unwrap(), "train/n01440764/7.JPEG");
        assert_eq!(fill("{name}", &["a/b/c.png"]).unwrap(), "a/b/c.png");
        assert_eq!(fill("masks/{id}{id}-{x}", &["1", "é"]).unwrap(), "masks/11-é");
        assert_eq!(Template::parse("{id}/{id}").unwrap().columns(), ["id"]);
    }

    #[test]
    fn patterns_that_are_none_are_refused() {
        for (text, why) in [
            ("", "it names no column"),
            ("train/x.JPEG", "it names no column"),
            ("{id", "a { has no }"),
            ("id}", "a } has no {"),
            ("{id}}", "a } has no {"),
            ("{a{b}", "{a{b} names no column"),
            ("{}/{id}", "{} names no column"),
        ] {
            let error = Template::parse(text).unwrap_err();
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }

    #[test]
    fn paths_that_are_none_are_refused() {
        for (value, why) in [
            ("..", "leads out of the tree"),
            ("a/../../b", "leads out of the tree"),
            (".", "leads out of the tree"),
            ("", "has an empty name"),
            ("a//b", "has an empty name"),
            ("/a", "has an empty name"),
            ("a/", "has an empty name"),
            ("a\0b", "has a zero byte"),
        ] {
            let error = fill("x/{v}", &[value]).unwrap_err();
            assert!(error.ends_with(why), "{value:?}: {error}");
        }
    }
}
