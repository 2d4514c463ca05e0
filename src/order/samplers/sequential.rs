//! No shuffling at all.

use super::{SamplerEpochs, Sampling};

sampler! {
    name: "sequential",
    about: "one file after the other, in every epoch",

    /// 0, 1, 2 ... in every epoch: `torch.utils.data.SequentialSampler`, or a loader that does not
    /// shuffle.
    #[derive(Copy)]
    pub struct Sequential {}
}

impl Sampling for Sequential {
    fn epochs(&self, n: u32) -> SamplerEpochs {
        SamplerEpochs::new(move |_epoch| (0..n).collect())
    }
}
