//! Large files that are read whole, but not from their start on.

use super::parts::arrive_all;
use super::*;

const FILES: u32 = 64;
const BLOCKS: u32 = 8;

/// Pages of a read, and reads of a block.
const PIECE: u16 = 32;
const PIECES: u32 = 8;

/// The pieces of a file that a worker reads, each with its block and first page. It reads the first piece and
/// `peek` first; the other pieces come in the mixed order of the kernel's read-ahead.
fn pieces(file: u32, peek: u32) -> VecDeque<(BlockId, u16)> {
    let piece = |nth: u32| {
        let block = BlockId(file * BLOCKS + nth / PIECES);
        (block, (nth % PIECES) as u16 * PIECE)
    };
    let mut whole: Vec<u32> = (0..BLOCKS * PIECES).collect();
    whole.chunks_exact_mut(4).for_each(|pieces| pieces.swap(1, 2));
    [0, peek].into_iter().chain(whole).map(piece).collect()
}

fn read(world: &mut World, task: u32, block: BlockId, first: u16) {
    let has = |page: u16| world.parts.get(&block).is_some_and(|set| set.contains(&page));
    if world.pages.contains(&block) {
        return if first == 0 {
            world.read_block(block, task)
        };
    }
    if (first..first + PIECE).all(has) {
        return;
    }
    let file = world.layout.file_of(block);
    if !world.fetching.contains(&block) && world.in_parts.contains(&file) {
        world.read_part(block, task, first, PIECE);
    } else if !world.fetching.contains(&block) {
        world.miss(block, task);
    }
    arrive_all(world);
}

/// Four readers go through their files at the same time in an unknown order, as `tf.data`'s interleave does.
/// Their next blocks are fetched before they ask for them, even if RAM is full.
#[test]
fn what_comes_next_is_fetched_in_place_of_what_this_epoch_has_read() {
    let layout = Arc::new(Layout::new((0..FILES).map(|_| u64::from(BLOCKS) << 20)));
    let plan = settings(layout.pages_bytes_of_all() / 2, None, PolicyKind::Auto);
    let plan = Settings { window_bytes: None, inflight_max: 32, ..plan };
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    let mut before = Counters::default();
    for epoch in 0..4 {
        let mut files: VecDeque<u32> = shuffled(FILES, epoch).iter().copied().collect();
        let mut workers: Vec<VecDeque<BlockId>> = vec![VecDeque::new(); 4];
        while !files.is_empty() || workers.iter().any(|left| !left.is_empty()) {
            for (task, left) in (1..).zip(&mut workers) {
                if left.is_empty()
                    && let Some(file) = files.pop_front()
                {
                    world.tell(Event::Seen { task, file: FileId(file) });
                    left.extend((file * BLOCKS..(file + 1) * BLOCKS).map(BlockId));
                }
                let Some(block) = left.pop_front() else { continue };
                world.read_block(block, task);
                arrive_all(&mut world);
                world.check();
            }
        }
        let now = world.planner.counters();
        let demanded = now.demanded - before.demanded;
        let fetched = (now.source_bytes - before.source_bytes) >> 20;
        assert!(2 * demanded <= fetched, "{epoch}: {demanded} of {fetched}");
        before = now;
    }
}

/// A world with files of 8 MiB, and RAM for half of them.
fn half(may_untrack: bool) -> World {
    let layout = Arc::new(Layout::new((0..FILES).map(|_| u64::from(BLOCKS) << 20)));
    let plan = settings(layout.pages_bytes_of_all() / 2, None, PolicyKind::Auto);
    let plan = Settings { window_bytes: None, inflight_max: 32, may_untrack, ..plan };
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    world
}

/// Four workers take batches of files in turn, and read them at the same time. Returns how much the source gave, over all
/// bytes of the files.
fn read_batches(world: &mut World, files: &[u32], batch: usize, peek: u32) -> f64 {
    let before = world.planner.counters().source_bytes;
    let mut batches = files.chunks(batch);
    let mut workers = vec![VecDeque::new(); 4];
    loop {
        let mut are_done = true;
        for (task, left) in (1..).zip(&mut workers) {
            if left.is_empty()
                && let Some(batch) = batches.next()
            {
                let piece = |&file: &u32| pieces(file, peek).into_iter().map(move |it| (file, it));
                left.extend(batch.iter().flat_map(piece));
            }
            let Some((file, (block, first))) = left.pop_front() else { continue };
            are_done = false;
            let file = FileId(file);
            if world.seen.get(&task) != Some(&file) && !world.untracked.contains(&file) {
                world.look_up(task, file);
            }
            read(world, task, block, first);
        }
        world.check();
        if are_done {
            let fetched = world.planner.counters().source_bytes - before;
            return fetched as f64 / world.layout.pages_bytes_of_all() as f64;
        }
    }
}

/// An archive's directory is at its end. Some files have a part in their middle that is read first.
#[test]
fn archives_cost_their_own_bytes() {
    for peek in [BLOCKS * PIECES - 1, BLOCKS * PIECES / 2 + 3] {
        let mut world = half(false);
        let shares: Vec<f64> = (0..3)
            .map(|epoch| read_batches(&mut world, &shuffled(FILES, epoch), 1, peek))
            .collect();
        println!("{peek}: {shares:.3?}");
        assert_eq!(shares[0], 1.0, "each byte once");
        assert!(shares[1..].iter().all(|share| *share <= 0.56), "{peek}: {shares:?}");
    }
}

/// Four workers read their batches of files at the same time in a known order, as those of `DataLoader` do. Some look at
/// the end of a file first, or at its middle. Blocks behind a worker give way before it is done with the file.
#[test]
fn of_files_that_are_read_in_a_known_order_little_is_staged() {
    let epochs: Vec<Arc<[u32]>> = (0..4).map(|epoch| shuffled(FILES, epoch)).collect();
    let (end, middle) = (BLOCKS * PIECES - 1, BLOCKS * PIECES / 2 + 3);
    let cases = [(1, 0), (4, 0), (1, end), (4, end), (4, middle)];
    let shares = cases.map(|(batch, peek)| {
        let mut world = half(true);
        let order = Order::listed("test", epochs.clone(), SampleTable::Files).unwrap();
        world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
        let read = |files: &Arc<[u32]>| read_batches(&mut world, files, batch, peek);
        let shares: Vec<f64> = epochs.iter().map(read).collect();
        println!("batches of {batch}, {peek}: {shares:.3?}");
        shares
    });
    let mut steady = shares.iter().flat_map(|it| &it[1..]);
    assert!(steady.all(|share| *share < 0.56), "{shares:?}");
    assert!(shares.iter().all(|it| it[0] < 1.03), "{shares:?}");
}

/// Two orders read ranges of one file. The second one has the file cut anew while the first one is read.
#[test]
fn an_order_goes_on_if_another_one_has_its_file_cut_anew() {
    let plan = settings(2 << 20, None, PolicyKind::Auto);
    let mut world = World::new(Settings { may_untrack: true, ..plan });
    let order = ranges(50_000);
    world.cut(0, 50_000);
    let epoch = order.epoch(0);
    let read = |world: &mut World, samples: &[u32]| {
        for sample in samples {
            world.read_range(1, u64::from(*sample) * 50_000, 50_000);
            arrive_all(world);
            world.check();
        }
    };
    read(&mut world, &epoch[..20]);
    world.cut(1, 30_000);
    arrive_all(&mut world);
    let status = |world: &World| world.planner.streams().next().unwrap().1;
    let before = status(&world);
    assert!(before.following && before.position >= 20, "{before:?}");
    let fetched = world.fetched;
    read(&mut world, &epoch[20..]);
    let after = status(&world);
    assert!(after.following && after.begun == 1, "{after:?}");
    assert_eq!(after.opens_strayed, before.opens_strayed, "{after:?}");
    assert!(world.fetched - fetched < 3 * 40, "{}", world.fetched - fetched);
}

/// RAM is full when a loader begins to look at the index at the end of a file before it reads each sample. The order has
/// only the samples.
#[test]
fn an_index_outside_of_the_order_is_kept() {
    let plan = settings(2 << 20, None, PolicyKind::Auto);
    let mut world = World::new(Settings { may_untrack: true, ..plan });
    world.cut(0, 50_000);
    let (offset, length) = world.layout.range(world.layout.blocks_of(LARGE).last().unwrap());
    let end = offset + length - 1;
    let index = world.layout.blocks_in(LARGE, end, 1).next().unwrap();
    let (order, mut missed) = (ranges(50_000), 0);
    for epoch in 0..2 {
        for sample in order.epoch(epoch).iter() {
            if epoch == 1 {
                missed += u32::from(!world.pages.contains(&index));
                world.read_range(1, end, 1);
            }
            world.read_range(1, u64::from(*sample) * 50_000, 50_000);
            arrive_all(&mut world);
            while !world.dropping.is_empty() {
                world.finish(true);
            }
            world.check();
        }
    }
    println!("the index was fetched {missed} times");
    assert!(missed <= 3, "the index was fetched {missed} times");
}
