//! Configuration: turns written settings into the settings that the daemon runs with.
//!
//! 1. [`Layers`] collects the written settings: the text of files, `BELADY_*` variables and flags. The caller
//!    hands over text; nothing here opens a file or reads the environment.
//! 2. [`Layers::build`] merges them into one TOML table, the weakest layer first. It checks each key where it
//!    is written: whether the key exists, and whether its value has the right type. So an error names the
//!    file and line, the variable or the flag. The table becomes a [`Config`]. [`Origins`] has the origin of
//!    each value.
//! 3. [`resolve()`] needs the [`Host`]. It makes a number of each `"auto"` and percentage, and checks
//!    the relations between keys. The result is [`Settings`], all that the rest of belady sees.
//! 4. While a mount runs, [`Budget`] follows what fits the memory of the machine and its limits.
//!
//! A key is declared once, in `schema.rs`. [`KEYS`] has the order in which keys are shown, and their help.

mod budget;
mod check;
mod entries;
mod join;
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
pub use join::{HostPort, Join, OwnAddress, Servers};
pub use keys::Key;
pub use layers::{Layers, Origin, Origins};
pub use resolve::{hanging_disk_error, resolve};
pub use schema::{
    CacheConfig, ClusterConfig, Config, Consistency, Control, DerivedConfig, KEYS, Learn,
    LogConfig, Manners, Mode, MountConfig, OrderConfig, PolicyKind, PrefetchConfig,
    RehearsalConfig, SourceConfig, Start, StreamConfig, View,
};
pub use settings::{
    CacheSettings, ClusterSettings, DiskSettings, Host, LearnSettings, PrefetchSettings,
    RehearsalSettings, Settings, SourceSettings,
};
pub use show::{default_toml, render_show};
pub use units::{BufferSize, Bytes, Period, Size};
