//! How much of a source each node of a cluster may ask for, if all nodes together have a limit.
//!
//! A node that asks for less than its share leaves the rest to those that want more: max-min fairness (Bertsekas and
//! Gallager, "Data Networks").

/// What a node asks the source for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Bytes a second, of late.
    pub asked: u64,
    /// Whether it would ask for more if it might.
    pub wants_more: bool,
}

/// The bytes a second that a node may ask for, of so many that all nodes may ask for together.
pub fn share(rate: u64, own: Demand, others: &[Demand]) -> u64 {
    let (nodes, hungry) =
        (others.len() as u64 + 1, count_hungry(others) + u64::from(own.wants_more));
    let share = if own.wants_more {
        let sated = others.iter().filter(|other| !other.wants_more).map(|other| other.asked);
        // Nobody waits for ever, whatever the others take.
        let left = rate.saturating_sub(sated.fold(0, u64::saturating_add));
        (left / hungry).max(rate / (4 * nodes))
    } else {
        // All nodes may begin at once. One that wants more than that has it a moment later.
        own.asked.saturating_mul(2).min(rate / (hungry + 1)).max(rate / nodes)
    };
    share.max(1)
}

fn count_hungry(nodes: &[Demand]) -> u64 {
    nodes.iter().filter(|node| node.wants_more).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What nodes ask for that want so much, after a while.
    fn settled(rate: u64, wanted: &[u64]) -> Vec<u64> {
        let mut demands = vec![Demand::default(); wanted.len()];
        for _ in 0..20 {
            let before = demands.clone();
            for (node, wanted) in wanted.iter().enumerate() {
                let mut others = before.clone();
                let own = others.remove(node);
                let share = share(rate, own, &others);
                demands[node] = Demand { asked: share.min(*wanted), wants_more: *wanted > share };
            }
        }
        demands.iter().map(|demand| demand.asked).collect()
    }

    #[test]
    fn the_rate_is_used_up_and_not_exceeded_and_small_demands_are_met() {
        assert_eq!(settled(100, &[1000; 4]), [25; 4]);
        assert_eq!(settled(100, &[1000, 0, 0, 0]), [100, 0, 0, 0]);
        assert_eq!(settled(100, &[1000, 20, 0]), [80, 20, 0]);
        assert_eq!(settled(100, &[1000, 1000, 20]), [40, 40, 20]);
        assert_eq!(settled(100, &[30, 30, 30]), [30; 3]);
        assert_eq!(share(0, Demand::default(), &[]), 1);
        // Nodes that begin together ask for no more than they may.
        assert_eq!(share(100, Demand::default(), &[Demand::default(); 3]), 25);
        let much = Demand { asked: u64::MAX, wants_more: false };
        assert_eq!(share(100, Demand { asked: 0, wants_more: true }, &[much; 4]), 5);
    }
}
