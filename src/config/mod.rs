//! Configuration: from what people write to what the daemon runs with.
//!
//! 1. [`Layers`] collects the written settings: the text of files, `BELADY_*` variables and flags.
//!    Nothing here opens a file or looks at the environment; the caller hands over text.
//! 2. [`Layers::build`] edits one TOML table, the weakest layer first, and checks each key where
//!    it is written: is there such a key, and is the value of its type. An error therefore names
//!    the file and line, the variable or the flag. The table becomes a [`Config`], and [`Origins`]
//!    says of each key where its value came from.
//! 3. [`Config::resolve`] meets the [`Host`]: every `"auto"` and percentage becomes a number and
//!    every relation between keys is checked. The result is [`Settings`], all that the rest of
//!    belady ever sees.
//! 4. While a mount runs, [`Budget`] follows what fits the memory of the machine and its limits.
//!
//! The struct [`Config`] is the only list of options. [`KEYS`] adds to it the order in which keys
//! are shown and the help that people read; a test holds the two together.

mod budget;
mod check;
mod entries;
mod keys;
mod layers;
mod resolve;
mod schema;
mod settings;
mod show;
#[cfg(test)]
mod tests;
mod units;

pub use budget::{Budget, Reading};
pub use keys::{KEYS, Key};
pub use layers::{Layers, Origin, Origins};
pub use resolve::hangs;
pub use schema::{
    CacheConfig, Config, Consistency, Control, Learn, LogConfig, Mode, MountConfig, OrderConfig,
    PolicyKind, PrefetchConfig, RehearsalConfig, SourceConfig, Start, StreamConfig,
};
pub use settings::{
    CacheSettings, DiskSettings, Host, LearnSettings, LogSettings, MountSettings, PrefetchSettings,
    RehearsalSettings, Settings, SourceSettings,
};
pub use show::{default_toml, render_show};
pub use units::{BufferSize, Bytes, Period, Size};
