//! The command line.

use std::num::NonZeroU64;
use std::path::PathBuf;

use belady::config::{Bytes, Period};
use clap::Parser;

use crate::link::Shape;
use crate::timing::nanos;

/// Passes TCP connections on to a target, as slowly as a long link would.
///
/// It prints the address at which it listens, and serves until it is killed.
#[derive(Debug, Parser)]
#[command(name = "slowlink", version)]
pub(crate) struct Cli {
    /// Where the link ends.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) to: String,
    /// Where clients connect. Port 0 is any free port.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// How long bytes travel, one way, as 50ms: half a round trip.
    #[arg(long, value_name = "TIME")]
    pub(crate) delay: Period,
    /// The most that chance adds to the delay, as 10ms.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub(crate) jitter: Period,
    /// Bytes a second of all connections together, in each direction, as 25MB. Default: no limit.
    #[arg(long, value_name = "SIZE", value_parser = above_zero)]
    pub(crate) rate: Option<NonZeroU64>,
    /// The most bytes of a connection that are on their way in a direction.
    #[arg(long, value_name = "SIZE", default_value = "6MiB", value_parser = above_zero)]
    pub(crate) window: NonZeroU64,
    /// Seed of the jitter.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Listen on this unix socket for commands, one a line.
    ///
    /// stall: nothing arrives.
    /// cut: all connections are closed, and new ones are refused.
    /// go: ends both.
    /// count: connections and bytes since the start.
    #[arg(long, value_name = "SOCKET")]
    pub(crate) control: Option<PathBuf>,
}

impl Cli {
    /// The link that is asked for.
    pub(crate) fn shape(&self) -> Shape {
        Shape {
            delay: nanos(self.delay.0),
            jitter: nanos(self.jitter.0),
            rate: self.rate,
            window: usize::try_from(self.window.get()).unwrap_or(usize::MAX),
            seed: self.seed,
        }
    }
}

/// A number of bytes that is not 0.
fn above_zero(text: &str) -> Result<NonZeroU64, String> {
    let bytes = text.parse::<Bytes>().map_err(|error| error.to_string())?;
    NonZeroU64::new(bytes.0).ok_or_else(|| "more than 0 bytes are needed".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parsed(words: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(["slowlink"].into_iter().chain(words.split_whitespace()))
    }

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn quantities_have_units() {
        let cli = parsed("--to a:1 --delay 50ms --jitter 1.5ms --rate 25MB --seed 3").unwrap();
        let rate = NonZeroU64::new(25_000_000);
        let window = 6 << 20;
        let expected = Shape { delay: 50_000_000, jitter: 1_500_000, rate, window, seed: 3 };
        assert_eq!(cli.shape(), expected);
        assert_eq!(cli.listen, "127.0.0.1:0");
    }

    #[test]
    fn nonsense_is_refused() {
        let bad = ["--to a:1", "--delay 1ms", "--to a:1 --delay 50", "--to a:1 --delay -1ms"];
        for words in bad {
            assert!(parsed(words).is_err(), "{words}");
        }
        for words in ["--window 0", "--rate 0B", "--rate 25M", "--jitter fast"] {
            assert!(parsed(&format!("--to a:1 --delay 1ms {words}")).is_err(), "{words}");
        }
    }
}
