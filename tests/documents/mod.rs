//! Takes blocks and commands out of README.md and docs/, and makes the dataset that they need.
//!
//! `tests/docs.rs` runs all that mounts nothing, and `tests/mounts/docs.rs` the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories of the documents, in the order in which they are replaced by the test's own.
pub(crate) const SOURCE: &str = "/lustre/imagenet";

/// Three rows of four numbers in numpy's format.
const ARRAY: &[u8] = b"\x93NUMPY\x01\x00\x3c\x00{'descr': '|u1', 'fortran_order': False, 'shape': (3, 4), }\nrows of text";
pub(crate) const MOUNT: &str = "/mnt/imagenet";
pub(crate) const CACHE: &str = "/local/belady";

/// The files of the dataset at `SOURCE`: two classes to learn from, one to test with.
const CLASSES: [(&str, u32); 3] =
    [("train/n01440764", 20), ("train/n02102040", 20), ("val/n01440764", 10)];

/// The file that `new.txt` names. It was never read, so that it can be offered.
pub(crate) const UNREAD: &str = "train/n02102040/n02102040_0.JPEG";

/// A job that reads every file of a directory.
const TRAINING: &str = "import os, sys\n\
    for top, _, files in os.walk(sys.argv[1]):\n\
    \x20   for name in files:\n\
    \x20       open(os.path.join(top, name), 'rb').read()\n";

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A document.
pub(crate) struct Page {
    /// Its path below the root of the repository.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A fenced block of a page.
pub(crate) struct Block {
    /// The page and the line at which it begins, for people.
    pub(crate) at: String,
    pub(crate) language: String,
    pub(crate) text: String,
    /// The name of the file in which it is said to be, if it is settings.
    pub(crate) file: Option<String>,
}

/// README.md and all of docs/.
pub(crate) fn pages() -> Vec<Page> {
    let entries = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> =
        entries.map(|entry| format!("docs/{}", entry.file_name().to_str().unwrap())).collect();
    names.push("README.md".to_owned());
    names.sort();
    assert!(names.len() > 9, "only {names:?}");
    let read = |name: String| Page { text: fs::read_to_string(root().join(&name)).unwrap(), name };
    names.into_iter().map(read).collect()
}

impl Page {
    /// Its fenced blocks.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut open, mut before) = (Vec::new(), None::<Block>, "");
        for (number, line) in (1..).zip(self.text.lines()) {
            match (line.strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    open = Some(Block {
                        at: format!("{}:{number}", self.name),
                        language: language.to_owned(),
                        text: String::new(),
                        file: file_of(before),
                    });
                }
                (Some(rest), Some(_)) => {
                    assert_eq!(rest, "", "{}:{number}: the end of a block has a word", self.name);
                    blocks.extend(open.take());
                }
                (None, Some(block)) => block.text += &format!("{line}\n"),
                (None, None) if !line.is_empty() => before = line,
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block does not end", self.name);
        blocks
    }
}

/// The name of a settings file in a line of text.
fn file_of(line: &str) -> Option<String> {
    line.split('`').skip(1).step_by(2).find(|word| word.ends_with(".toml")).map(str::to_owned)
}

impl Block {
    /// Whether it shows commands.
    pub(crate) fn is_shell(&self) -> bool {
        ["sh", "console"].contains(&self.language.as_str())
    }

    /// Its commands: lines without comments, each joined with its continuation lines. In a console session, a
    /// command follows a `$`, and other lines are output.
    pub(crate) fn commands(&self) -> Vec<String> {
        let (mut commands, mut command) = (Vec::new(), String::new());
        for line in self.text.lines() {
            let typed = line.strip_prefix("$ ");
            if self.language == "console" && typed.is_none() && command.is_empty() {
                continue;
            }
            let line = typed.unwrap_or(line);
            let line = line.split_once(" #").map_or(line, |(line, _)| line).trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(part) = line.strip_suffix('\\') {
                command += part;
            } else {
                commands.push(std::mem::take(&mut command) + line);
            }
        }
        assert_eq!(command, "", "{}: the last line goes on", self.at);
        commands
    }

    /// Whether one of its commands needs a mount, a runtime directory or a cache disk.
    pub(crate) fn mounts(&self) -> bool {
        let needs = [MOUNT, CACHE, "belady status", "belady doctor", "belady run"];
        self.commands().iter().any(|command| needs.iter().any(|word| command.contains(word)))
    }
}

pub(crate) fn is_belady(command: &str) -> bool {
    command.starts_with("belady ")
}

/// A directory with everything that the documents name.
pub(crate) struct Scene {
    /// Where commands are run.
    pub(crate) work: PathBuf,
    pub(crate) source: PathBuf,
    pub(crate) mount: PathBuf,
    pub(crate) cache: PathBuf,
}

impl Scene {
    /// The dataset in `source`, and in `work` the files that commands name.
    pub(crate) fn new(directory: &Path) -> Scene {
        let path = |name| directory.join(name);
        let scene = Scene {
            work: path("work"),
            source: path("source"),
            mount: path("mount"),
            cache: path("cache"),
        };
        for (class, count) in CLASSES {
            let name = class.rsplit('/').next().unwrap();
            for number in 0..count {
                let bytes = [number as u8; 3000];
                write(&scene.source, &format!("{class}/{name}_{number}.JPEG"), &bytes);
            }
        }
        let [(first, _), (second, _), _] = CLASSES;
        let name = format!("{first}/n01440764_1.JPEG");
        for (file, text) in [
            ("tasks/0.txt", format!("{first}\n")),
            ("tasks/1.txt", format!("{second}\n")),
            ("list.txt", format!("{name}\n")),
            ("new.txt", format!("{UNREAD}\n")),
            ("scores.txt", format!("{name} 0.5\n")),
            ("train.py", TRAINING.to_owned()),
        ] {
            write(&scene.work, file, text.as_bytes());
        }
        write(&scene.work, "arrays/rows.npy", ARRAY);
        scene.pack();
        scene
    }

    /// Packs the dataset into tar files in `shards`.
    fn pack(&self) {
        let shards = self.work.join("shards");
        fs::create_dir_all(&shards).unwrap();
        for part in ["train", "val"] {
            let mut tar = Command::new("tar");
            tar.arg("-C").arg(&self.source).arg("-cf").arg(shards.join(format!("{part}.tar")));
            assert!(tar.arg(part).status().unwrap().success());
        }
    }

    /// A text in which the test's directories replace those of the documents.
    pub(crate) fn place(&self, at: &str, text: &str) -> String {
        let places = [(SOURCE, &self.source), (MOUNT, &self.mount), (CACHE, &self.cache)];
        let places = places.map(|(shown, own)| (shown, own.to_str().unwrap()));
        for word in text.split([' ', '=', '"', '\'', '\n']).filter(|word| word.starts_with('/')) {
            let known = places.iter().any(|(shown, _)| Path::new(word).starts_with(shown));
            assert!(known, "{at}: the documents have no directory {word}");
        }
        places.iter().fold(text.to_owned(), |text, (shown, own)| text.replace(shown, own))
    }

    /// Writes a block of settings to the file in which it is said to be.
    pub(crate) fn keep(&self, block: &Block) {
        if let Some(file) = block.file.as_ref().filter(|_| block.language == "toml") {
            write(&self.work, file, self.place(&block.at, &block.text).as_bytes());
        }
    }

    /// A command as a shell runs it, with the tested program.
    pub(crate) fn shell(&self, at: &str, command: &str, program: &Path) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", program.parent().unwrap().display());
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &self.place(at, command)]).current_dir(&self.work);
        shell.env("PATH", path);
        shell
    }
}

fn write(directory: &Path, name: &str, bytes: &[u8]) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}
