//! How much the processors of the machine have been used.

use nix::unistd::{SysconfVar, sysconf};

/// The use of the machine's processors since its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorsUsed {
    pub processors: u32,
    /// Seconds of all of them together.
    pub seconds: f64,
}

/// `None` if the kernel does not tell it.
pub fn processors_used() -> Option<ProcessorsUsed> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    parsed(&std::fs::read_to_string("/proc/stat").ok()?, ticks as f64)
}

/// The first line of `/proc/stat` is of all processors. Then there is a line of each.
fn parsed(stat: &str, ticks_per_second: f64) -> Option<ProcessorsUsed> {
    let mut lines = stat.lines();
    let mut words = lines.next()?.strip_prefix("cpu ")?.split_whitespace();
    let mut ticks = || words.next().map_or(Some(0.0), |word| word.parse::<f64>().ok());
    let (user, nice, system) = (ticks()?, ticks()?, ticks()?);
    let (_idle, _waits_for_disk) = (ticks()?, ticks()?);
    let (interrupts, soft_interrupts, stolen) = (ticks()?, ticks()?, ticks()?);
    let busy = user + nice + system + interrupts + soft_interrupts + stolen;
    let processors = lines.take_while(|line| line.starts_with("cpu")).count() as u32;
    Some(ProcessorsUsed { processors, seconds: busy / ticks_per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_no_work() {
        let stat = "cpu  100 20 30 5000 700 4 5 6 9 9\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n";
        let used = parsed(stat, 100.0).unwrap();
        assert_eq!((used.processors, used.seconds), (2, 1.65));
        assert_eq!(parsed("", 100.0), None);
        assert_eq!(parsed("cpu  a b c\n", 100.0), None);
        assert!(processors_used().unwrap().seconds > 0.0);
    }
}
