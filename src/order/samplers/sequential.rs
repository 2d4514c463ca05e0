//! No shuffling at all.

use super::{Positions, Sampler, Sampling};

sampler! {
    name: "sequential",
    about: "one file after the other, in every epoch",

    /// 0, 1, 2 ... in every epoch: `torch.utils.data.SequentialSampler`, or a loader that does not
    /// shuffle.
    #[derive(Copy)]
    pub struct Sequential {}
}

impl Sampler {
    pub const SEQUENTIAL: Sampler = Sampler::Sequential(Sequential {});
}

impl Sampling for Sequential {
    fn epochs(&self, n: u32, from: u32) -> Positions {
        Positions::new(move |_| (0..n).collect(), 0, from)
    }
}
