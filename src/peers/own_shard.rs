//! This node's own shard: lists its blocks and removes some. A mark takes the place of a block that the disk has.
//!
//! Homes move when members come and go, and files change. Nobody asks the shard for such blocks any more, but they take
//! room.

use redis::{RedisResult, cmd, pipe};

use super::connection::{Access, Connection};
use super::shards::Listed;
use super::values::{self, Key, TRAILER};

/// Keys that are listed with one request, about, and removed with one.
const PAGE: usize = 1000;

/// This node's own shard, and its tag.
#[derive(Clone)]
pub(super) struct OwnShard {
    pub(super) access: Access,
    pub(super) tag: String,
}

impl OwnShard {
    /// Removes the blocks that are not wanted. Returns how many there were. Blocks.
    ///
    /// # Errors
    /// If the shard does not answer.
    pub(super) fn sweep(&self, is_wanted: &dyn Fn(Key) -> bool) -> RedisResult<u64> {
        let mut connection = self.access.connect()?;
        let (mut removed, mut cursor) = (0, 0);
        loop {
            let (next, unwanted) = self.page(&mut connection, cursor, is_wanted)?;
            if !unwanted.is_empty() {
                removed += cmd("UNLINK").arg(&unwanted).query::<u64>(&mut connection)?;
            }
            if next == 0 {
                return Ok(removed);
            }
            cursor = next;
        }
    }

    /// [`Shards::list`](super::Shards::list)
    pub(super) fn list(&self, each: &mut dyn FnMut(Key, Listed)) -> RedisResult<()> {
        let (mut connection, mut cursor) = (self.access.connect()?, 0);
        loop {
            let (next, names) = self.page(&mut connection, cursor, &|_| false)?;
            let mut lengths = pipe();
            names.iter().for_each(|name| _ = lengths.cmd("STRLEN").arg(name));
            let lengths: Vec<usize> = lengths.query(&mut connection)?;
            for (name, length) in names.iter().zip(lengths) {
                let Some(key) = Key::parse(name, &self.tag) else { continue };
                match length.checked_sub(TRAILER) {
                    Some(bytes) => each(key, Listed::Bytes(bytes as u32)),
                    None if length == values::ON_DISK.len() => each(key, Listed::Mark),
                    None => {}
                }
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// [`Shards::mark_on_disk`](super::Shards::mark_on_disk)
    pub(super) fn mark_on_disk(&self, blocks: &[Key], are_new: bool) -> RedisResult<()> {
        let mut connection = self.access.connect()?;
        for names in self.names(blocks) {
            let mut set = pipe();
            for name in &names {
                let set = set.cmd("SET").arg(name).arg(values::ON_DISK).ignore();
                if are_new {
                    set.arg("NX");
                }
            }
            let done = set.query::<()>(&mut connection);
            if done.is_err() && !are_new {
                // A shard that is full takes nothing, not even less than it has.
                cmd("UNLINK").arg(&names).query::<()>(&mut connection)?;
                set.query::<()>(&mut connection)?;
            }
        }
        Ok(())
    }

    /// [`Shards::forget`](super::Shards::forget)
    pub(super) fn forget(&self, blocks: &[Key]) -> RedisResult<()> {
        let mut connection = self.access.connect()?;
        self.names(blocks)
            .try_for_each(|names| cmd("UNLINK").arg(&names).query::<()>(&mut connection))
    }

    /// The names of blocks in this shard, some at a time.
    fn names(&self, blocks: &[Key]) -> impl Iterator<Item = Vec<String>> {
        blocks.chunks(PAGE).map(|page| page.iter().map(|block| block.at(&self.tag)).collect())
    }

    /// A page of the keys that are not wanted, and where the next page begins.
    fn page(
        &self,
        connection: &mut Connection,
        cursor: u64,
        is_wanted: &dyn Fn(Key) -> bool,
    ) -> RedisResult<(u64, Vec<Vec<u8>>)> {
        let pattern = format!("{}*", values::prefix(&self.tag));
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(PAGE);
        let (next, mut keys): (u64, Vec<Vec<u8>>) = scan.query(connection)?;
        keys.retain(|key| Key::parse(key, &self.tag).is_some_and(|key| !is_wanted(key)));
        Ok((next, keys))
    }
}
