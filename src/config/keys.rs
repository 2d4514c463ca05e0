//! The keys of a configuration: their order, their help, and which key was meant by a wrong one.

use std::fmt::Write;

use crate::error::{Error, ErrorKind};

#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The full name, `cache.ram`.
    pub name: &'static str,
    /// What it does, for people, in lines of at most 96 characters.
    pub help: &'static str,
}

const fn key(name: &'static str, help: &'static str) -> Key {
    Key { name, help }
}

/// Every key outside `[rehearsal.NAME]` and `[[stream]]`, in the order in which they are shown.
pub const KEYS: &[Key] = &[
    key(
        "source.consistency",
        "\"revalidate\": files may change during the mount and are checked again after a while.\n\
         \"immutable\": they never change; nothing is asked twice.",
    ),
    key("source.revalidate", "After this time a name is checked at the source again."),
    key("source.scan-threads", "Directories listed at once when mounting, 1 to 256."),
    key(
        "cache.ram",
        "Kernel page cache and buffers: \"16GiB\", \"25%\" of the memory limit, or \"auto\": 25% of\n\
         the memory limit, but no more than half of the memory that is available.",
    ),
    key("cache.dir", "Local directory of the disk tier, an absolute path; empty: no disk tier."),
    key(
        "cache.disk",
        "Disk tier: \"900GiB\", \"80%\" of the free space, or \"auto\": all but min-free.",
    ),
    key("cache.min-free", "Left free on the filesystem of dir: \"50GiB\", or \"5%\" of its size."),
    key(
        "cache.min-free-inodes",
        "Files that others can still make there; 0 where it has few in all.",
    ),
    key(
        "cache.large-file",
        "Files from this size on are files of their own in dir; smaller ones are packed together.",
    ),
    key(
        "cache.slow-after",
        "What dir has not answered a reader for so long is asked of the source as well.",
    ),
    key(
        "cache.policy",
        "What is kept when not everything fits: \"belady\", \"lru\", \"minio\", \"unread-first\",\n\
         \"none\", or \"auto\": by what is known of the readers' order.",
    ),
    key("prefetch.enabled", "Whether anything is read ahead of the readers."),
    key("prefetch.inflight", "Fetches from the source at once, 1 to 1024."),
    key(
        "prefetch.window",
        "Staged ahead of the readers and not kept: \"64MiB\", \"10%\" of cache.ram, or \"auto\".",
    ),
    key("prefetch.start", "Reading ahead begins at \"mount\" or at the \"first-open\" of a file."),
    key(
        "order.learn",
        "Orders that nobody tells are found out from what is read: \"auto\", \"no-crack\" (by popular\n\
         seeds alone, without searching all 2^32), or \"off\".",
    ),
    key(
        "order.learn-threads",
        "Threads that search for seeds, 0 to 256; 0: one for eight processors.",
    ),
    key(
        "order.learn-nice",
        "How far they stand back behind all other threads, 0 to 19: their nice value. The kernel\n\
         weighs it within a session or control group only, so who is kept waiting for a processor\n\
         also pauses so many times as long as it computes. Less lets them get on where no processor\n\
         is ever idle.",
    ),
    key(
        "order.learn-time",
        "Processor time that they may take for the loaders of one process, over all of its epochs;\n\
         then nothing more is searched for it. \"0s\": without limit.",
    ),
    key("mount.allow-other", "Let other users use the mount."),
    key(
        "mount.force-allow-other",
        "Let them although rights of parent directories or ACLs of the source are not checked.",
    ),
    key(
        "mount.mode",
        "How samples reach readers: \"push\" (pages ahead of the read, no request for an open),\n\
         \"keep-cache\" (pages ahead, opens are requests), \"plain\" (nothing is pushed, nothing is\n\
         read ahead), or \"auto\": the first of them that the kernel offers. \"passthrough\" is\n\
         keep-cache, and large files in cache.dir are read by the kernel itself, unchecked.",
    ),
    key(
        "mount.control",
        "Where .belady/ is served: \"auto\" (inside the mount, as root), \"off\", or a directory.",
    ),
    key(
        "mount.rehearsal",
        "Where rehearsal/ is served: \"auto\" (inside the mount, as root), \"off\", or a directory.",
    ),
    key(
        "mount.list-rehearsal",
        "Whether rehearsal/ is listed among the dataset's own directories; it is found by name.",
    ),
    key("mount.threads", "Threads that answer the kernel, 1 to 64."),
    key("mount.options", "Further mount options for the kernel, such as [\"noatime\"]."),
    key("log.level", "A filter such as \"info\" or \"info,belady::plan=debug\"."),
    key(
        "log.file",
        "Log file, an absolute path; empty: stderr in the foreground, else a file beside the\n\
         control socket.",
    ),
];

pub(super) const REHEARSAL: &str = "rehearsal";

pub(super) const REHEARSAL_KEYS: &[Key] = &[
    key("size", "How much is kept: 5000 samples, or \"2GiB\" of encoded files."),
    key(
        "policy",
        "Who is kept: \"reservoir\", \"class-balanced\", \"ring\", \"gdumb\", \"random-replace\",\n\
         \"uniform-balanced\", \"largest-class\", or by what the trainer says of samples: \"herding\",\n\
         \"max-loss\", \"min-margin\", \"min-replay\", \"prototypical\", \"mir\".",
    ),
    key("seed", "Where all chance comes from: the same seed and samples give the same buffer."),
    key(
        "classes",
        "How the class of a sample is known: \"directory\" (the one that it is in), a pattern such as\n\
         \"train/{class}/*.jpg\", or the absolute path of a file of lines path,class.",
    ),
    key("root", "The directory of the dataset of which samples are offered; empty: all of it."),
    key("offer-rate", "The share of the samples read that is offered, 0 to 1; 0: only by command."),
    key("distance", "Draws that follow each other and are all different."),
    key("slots", "Names in slots/ and in each of its classes, 0 to 10000."),
    key(
        "batch",
        "In mix/ there are `replay` samples of the buffer for so many of the task, 1 or more.",
    ),
    key("replay", "See `batch`; what is of the task itself is not drawn."),
    key(
        "latent",
        "Bytes of a code in latent/, where a trainer keeps what its network made of samples, 1 to\n\
         1048576; 0: there is no latent/. A buffer of codes alone needs no size.",
    ),
];

/// The leaf of a key `rehearsal.NAME.leaf`.
pub(super) fn leaf_of_buffer(key: &str) -> Option<&str> {
    let (name, leaf) = key.strip_prefix(REHEARSAL)?.strip_prefix('.')?.split_once('.')?;
    (!name.is_empty() && !leaf.contains('.')).then_some(leaf)
}

pub(super) const STREAM: &str = "stream";

pub(super) const STREAM_KEYS: [&str; 2] = ["name", "order"];

impl Key {
    /// The section of the key, `cache`.
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// The name within the section, `ram`.
    pub fn leaf(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, leaf)| leaf)
    }

    /// The environment variable that sets the key, `BELADY_CACHE_RAM`.
    pub fn env(&self) -> String {
        format!("BELADY_{}", self.name.replace(['.', '-'], "_").to_ascii_uppercase())
    }
}

/// The sections. Those whose tables have names come last.
pub(super) fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = KEYS.iter().map(Key::section).collect();
    sections.dedup();
    sections.extend([REHEARSAL, STREAM]);
    sections
}

pub(super) fn leaves(section: &str) -> Vec<&'static str> {
    if section == STREAM {
        return STREAM_KEYS.to_vec();
    }
    if section == REHEARSAL {
        return REHEARSAL_KEYS.iter().map(Key::leaf).collect();
    }
    KEYS.iter().filter(|key| key.section() == section).map(Key::leaf).collect()
}

/// The error for a key that does not exist, with the key that was probably meant.
pub(super) fn unknown(name: &str) -> Error {
    let mut message = format!("unknown key `{}`", name.escape_debug());
    let error = |message| Error::new(ErrorKind::Config, message);
    if let Some(meant) = meant(name) {
        // Writing to a String cannot fail.
        let _ = write!(message, "; did you mean `{meant}`?");
        return error(message);
    }
    let section = name.split(['.', '[']).next().unwrap_or_default();
    let leaves = leaves(section);
    if leaves.is_empty() {
        return error(message).hint(format!("the sections are {}", sections().join(", ")));
    }
    error(message).hint(format!("the keys of {section} are {}", leaves.join(", ")))
}

/// The key that was probably meant by `name`: a letter or two are wrong, or the section is missing or wrong.
fn meant(name: &str) -> Option<String> {
    // Names are short, so no slip is this long. The distance takes quadratic time.
    if name.len() > 64 {
        return None;
    }
    let (section, leaf) = name.rsplit_once('.').unwrap_or(("", name));
    let far = |a: &str, b: &str| strsim::osa_distance(&a.replace('_', "-"), b);
    if section.starts_with("stream[") {
        let near = STREAM_KEYS.into_iter().find(|key| far(leaf, key) <= 2)?;
        return Some(format!("{section}.{near}"));
    }
    if let Some(leaf) = leaf_of_buffer(name) {
        let near = REHEARSAL_KEYS.iter().find(|key| far(leaf, key.name) <= 2)?;
        return Some(format!("{section}.{}", near.name));
    }
    let closest = KEYS.iter().map(|key| (far(name, key.name), key)).min_by_key(|(far, _)| *far);
    let slip = closest.filter(|(far, key)| *far <= 2.min(key.leaf().len() - 1)).map(|(_, key)| key);
    let moved = || KEYS.iter().find(|key| far(leaf, key.leaf()) <= usize::from(leaf.len() > 3));
    slip.or_else(moved).map(|key| key.name.to_owned())
}
