//! Serializes paths, for `#[serde(with = "crate::paths")]`.
//!
//! A path is written as text if it is UTF-8, and as a list of bytes otherwise. Without this, serde refuses
//! paths that are not UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    let written = match path.to_str() {
        Some(text) => Written::Text(text.to_owned()),
        None => Written::Bytes(path.as_os_str().as_bytes().to_vec()),
    };
    written.serialize(serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Ok(match Written::deserialize(deserializer)? {
        Written::Text(text) => PathBuf::from(text),
        Written::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Named {
        #[serde(with = "super")]
        path: PathBuf,
    }

    #[test]
    fn every_path_comes_back_as_it_was() {
        for bytes in [&b"/data/caf\xc3\xa9"[..], b"/data/caf\xe9", b"/", b"", b"\xff\x01\n"] {
            let named = Named { path: OsString::from_vec(bytes.to_vec()).into() };
            let text = serde_json::to_string(&named).unwrap();
            assert_eq!(serde_json::from_str::<Named>(&text).unwrap(), named, "{text}");
        }
        let text = serde_json::to_string(&Named { path: "/a".into() }).unwrap();
        assert_eq!(text, r#"{"path":"/a"}"#, "text stays readable");
    }
}
