//! stub
use crate::ids::BlockId;use crate::catalog::NodeId;
/// The store.
pub struct Store;
impl Store {
    /// Has.
    pub fn contains(&self, _block: BlockId, _n: NodeId) -> bool { false }
    /// Get.
    pub fn get(&self, _block: BlockId, _n: NodeId) -> Option<Vec<u8>> { None }
    /// Put.
    pub fn put(&self, _block: BlockId, _n: NodeId, _bytes: &[u8]) -> bool { false }
    /// Remove.
    pub fn remove(&self, _block: BlockId) {}
}
