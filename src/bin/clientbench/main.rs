//! clientbench: times the clients of stores alone, and what belady makes of Cassandra.
//!
//! A tool for measurements. It prints one line of JSON. A time includes that of the connections, except where samples
//! are read.

mod cassandra;
mod samples;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cassandra::Tables;
use clap::{Parser, Subcommand};
use samples::Samples;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Times the clients of stores, or belady.
#[derive(Debug, Parser)]
#[command(name = "clientbench", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
    /// Rows or samples that are written or read at once.
    #[arg(long, global = true, default_value_t = 64)]
    inflight: u64,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write rows to both tables of Cassandra, with one byte of data each.
    CassandraFill {
        #[command(flatten)]
        tables: Tables,
        /// How many.
        #[arg(long)]
        rows: u64,
    },
    /// The driver lists all rows of Cassandra by ranges of tokens.
    CassandraList(Tables),
    /// belady lists all rows of Cassandra, and makes a tree of them.
    CassandraListByBelady(Tables),
    /// The driver reads the data of all rows of Cassandra by their keys.
    CassandraRead(Tables),
    /// The client reads values of Redis.
    RedisRead {
        /// The URL of the database.
        url: String,
        #[command(flatten)]
        samples: Samples,
    },
    /// The client reads objects of S3. The variables say of which server.
    S3Read {
        bucket: String,
        #[command(flatten)]
        samples: Samples,
    },
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("clientbench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<Value, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let began = Instant::now();
    let found = |rows: u64| json!({ "seconds": began.elapsed().as_secs_f64(), "rows": rows });
    Ok(match &cli.what {
        What::CassandraFill { tables, rows } => {
            runtime.block_on(cassandra::fill(tables, *rows, cli.inflight))?;
            found(*rows)
        }
        What::CassandraList(tables) => {
            found(runtime.block_on(cassandra::list(tables))?.len() as u64)
        }
        What::CassandraListByBelady(tables) => {
            let (_source, rows) = cassandra::list_as_belady(tables)?;
            found(rows)
        }
        What::CassandraRead(tables) => runtime.block_on(async {
            let rows = cassandra::list(tables).await?;
            cassandra::read(tables, rows, cli.inflight).await
        })?,
        What::RedisRead { url, samples } => {
            runtime.block_on(samples::read_redis(url, samples, cli.inflight))?
        }
        What::S3Read { bucket, samples } => {
            runtime.block_on(samples::read_s3(bucket, samples, cli.inflight))?
        }
    })
}

/// Runs a task for each number, some at once.
async fn each<F>(numbers: u64, at_once: u64, task: impl Fn(u64) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for number in 0..numbers {
        if running.len() as u64 >= at_once
            && let Some(done) = running.join_next().await
        {
            done??;
        }
        running.spawn(task(number));
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}

/// Runs a task for each number, some at once, and times all. A task returns the bytes that it has read.
async fn time_reads<F>(
    numbers: u64,
    at_once: u64,
    task: impl Fn(u64) -> F,
) -> Result<Value, Failure>
where
    F: Future<Output = Result<usize, Failure>> + Send + 'static,
{
    let (began, bytes) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    each(numbers, at_once, |number| {
        let (read, bytes) = (task(number), Arc::clone(&bytes));
        async move {
            bytes.fetch_add(read.await? as u64, Ordering::Relaxed);
            Ok(())
        }
    })
    .await?;
    let (seconds, bytes) = (began.elapsed().as_secs_f64(), bytes.load(Ordering::Relaxed));
    Ok(json!({ "seconds": seconds, "rows": numbers, "bytes": bytes }))
}
