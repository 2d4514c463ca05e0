//! The clients of stores of samples alone: whole values of Redis, whole objects of S3.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStoreExt};
use redis::AsyncCommands;
use serde_json::Value;

use crate::{Failure, time_reads};

/// As in belady.
const CONNECTIONS: usize = 8;

/// The samples to read, in their order.
#[derive(Debug, Args)]
pub(super) struct Samples {
    /// A file with a key in each line.
    keys: PathBuf,
    /// What each key begins with.
    #[arg(long, default_value = "")]
    prefix: String,
}

impl Samples {
    fn keys(&self) -> Result<Arc<[String]>, Failure> {
        let text = std::fs::read_to_string(&self.keys)?;
        Ok(text.lines().map(|line| format!("{}{line}", self.prefix)).collect())
    }
}

pub(super) async fn read_redis(
    url: &str,
    samples: &Samples,
    inflight: u64,
) -> Result<Value, Failure> {
    let keys = samples.keys()?;
    let client = redis::Client::open(url)?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(client.get_multiplexed_async_connection().await?);
    }
    time_reads(keys.len() as u64, inflight, |nth| {
        let nth = nth as usize;
        let (mut connection, keys) = (connections[nth % CONNECTIONS].clone(), Arc::clone(&keys));
        async move {
            let value: Vec<u8> = connection.get(&keys[nth]).await?;
            Ok(value.len())
        }
    })
    .await
}

pub(super) async fn read_s3(
    bucket: &str,
    samples: &Samples,
    inflight: u64,
) -> Result<Value, Failure> {
    let keys = samples.keys()?;
    let options = ClientOptions::new().with_allow_http(true);
    let store = AmazonS3Builder::from_env().with_bucket_name(bucket).with_client_options(options);
    let store = Arc::new(store.build()?);
    time_reads(keys.len() as u64, inflight, |nth| {
        let (store, keys) = (Arc::clone(&store), Arc::clone(&keys));
        async move {
            let object = store.get(&Key::parse(&keys[nth as usize])?).await?;
            Ok(object.bytes().await?.len())
        }
    })
    .await
}
