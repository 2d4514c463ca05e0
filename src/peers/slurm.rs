//! The nodes of a Slurm job.

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::program::output_of;
use crate::config::HostPort;

const JOB: &str = "SLURM_JOB_ID";
const NODES: &str = "SLURM_JOB_NODELIST";

/// Each job has a pair of ports, so that jobs of one user on one node have clusters of their own. Slurm's own ports are
/// below the first one, and those that the kernel gives away begin at 32,768.
const FIRST_PORT: u16 = 20_000;
const JOBS: u64 = 5_000;

/// How long `scontrol` may take, and how many bytes of names are read.
const WAIT: Duration = Duration::from_secs(10);
const NAMES_MOST: u64 = 1 << 20;

/// The nodes, once Slurm has told them. A job keeps its nodes.
static TOLD: OnceLock<Vec<HostPort>> = OnceLock::new();

/// The nodes of the job that this process is of.
///
/// # Errors
/// If it is of no job, or `scontrol` does not tell its nodes.
pub(super) fn nodes() -> Result<&'static [HostPort], String> {
    match TOLD.get() {
        Some(nodes) => Ok(nodes),
        None => ask().map(|nodes| &TOLD.get_or_init(|| nodes)[..]),
    }
}

/// Asks Slurm for them.
fn ask() -> Result<Vec<HostPort>, String> {
    let job = variable(JOB)?;
    let port = port_of(&job).ok_or_else(|| format!("{JOB} is {job:?}, and no number of a job"))?;
    let mut names = Command::new("scontrol");
    names.args(["show", "hostnames", &variable(NODES)?]);
    let told = output_of(&mut names, WAIT, NAMES_MOST);
    let told = told.map_err(|error| {
        format!("scontrol cannot be run: {error}: set cluster.join to hosts:A,B")
    })?;
    let nodes: Vec<HostPort> =
        told.split_whitespace().map(|name| HostPort { host: name.to_owned(), port }).collect();
    match nodes.is_empty() {
        true => {
            Err("`scontrol show hostnames` tells no nodes of this job: run it to see why"
                .to_owned())
        }
        false => Ok(nodes),
    }
}

fn variable(name: &str) -> Result<String, String> {
    let missing = |_| format!("cluster.join is slurm, but {name} is not set: mount within a job");
    std::env::var(name).map_err(missing)
}

fn port_of(job: &str) -> Option<u16> {
    let number: u64 = job.parse().ok()?;
    Some(FIRST_PORT + 2 * (number % JOBS) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_ports_below_those_of_the_kernel() {
        assert_eq!(port_of("0"), Some(20_000));
        assert_eq!(port_of("4999"), Some(29_998));
        assert_eq!(port_of("123457"), Some(20_000 + 2 * 3457));
        assert_eq!(port_of("18446744073709551615"), Some(20_000 + 2 * 1615));
        assert_eq!((port_of(""), port_of("12_3"), port_of("-1")), (None, None, None));
    }
}
