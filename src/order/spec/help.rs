//! The list of samplers that `belady order show --help` prints.

use super::parse::COMMON_KEYS;
use crate::order::containers::Container;
use crate::order::index::Sorting;
use crate::order::samplers::Sampler;

/// Every sampler with its keys and their defaults, then the keys of all orders.
pub fn help() -> String {
    let mut text = String::from(
        "Orders are NAME:key=value,... or an order file. Samplers, with the defaults of their keys:\n",
    );
    for mut sampler in Sampler::all() {
        let (name, about) = (sampler.name(), sampler.about());
        let keys: Vec<_> = sampler
            .keys()
            .iter()
            .map(|key| match key.required {
                Some(required) => format!("{}={}", key.name, required.placeholder),
                None => format!("{}={}", key.name, key.text()),
            })
            .collect();
        let colon = if keys.is_empty() { "" } else { ":" };
        text += &format!("\n  {name}{colon}{}\n      {about}\n", keys.join(","));
    }
    let sortings: Vec<_> = Sorting::WORDS.iter().map(|(word, _)| *word).collect();
    text += &format!("\nKeys of all orders: {}\n", COMMON_KEYS.join(" "));
    text +=
        &format!("  index={} or manifest:FILE (text, .csv, .tsv, .json);\n", sortings.join("|"));
    text +=
        "        path unless the sampler has one of its own name. Or samples inside large files:\n";
    text += &format!("        {}\n", Container::FORMS.join("|"));
    text += "  split=random_split:SEED:LENGTH+LENGTH:PART, train_test_split:SEED:SIZE:train or :test,\n";
    text += "        shuffle:SEED, slice:FROM:TO; several with / between them\n";
    text +=
        "  whole_batches=N: a loader that drops its last batch where that is not full: torch's\n";
    text +=
        "        DataLoader(batch_size=N, drop_last=True), whatever the sampler's own drop_last\n";
    text += "  epochs=same|reseed|fresh|again (of shuffled lists): shuffled once; from the start with\n";
    text +=
        "        seed + epoch; from the start, generator running on; what the last epoch left\n";
    text
}
