//! Removes blocks from this node's own shard.
//!
//! Homes move when members come and go, and files change. Nobody asks the shard for such blocks any more, but they take
//! room.

use redis::{Connection, RedisResult, cmd};

use super::shard::Access;
use super::values::{self, Key};

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
            let (next, unwanted) = self.list(&mut connection, cursor, is_wanted)?;
            if !unwanted.is_empty() {
                removed += cmd("UNLINK").arg(&unwanted).query::<u64>(&mut connection)?;
            }
            if next == 0 {
                return Ok(removed);
            }
            cursor = next;
        }
    }

    /// A page of the keys that are not wanted, and where the next page begins.
    fn list(
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
