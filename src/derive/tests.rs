//! Images that Pillow wrote, and what torchvision makes of them (`tests/vectors/images/make.py`).

use std::path::{Path, PathBuf};

use super::*;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/images");

const IMAGES: [&str; 10] = [
    "wide.jpg",
    "tall.jpg",
    "progressive.jpg",
    "grey.jpg",
    "cmyk.jpg",
    "turned.jpg",
    "wide.png",
    "palette.png",
    "grey.png",
    "clear.png",
];

fn read(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(VECTORS).join(name)).unwrap()
}

fn decode(bytes: &[u8]) -> Result<Image, Fault> {
    Image::decode(bytes)
}

fn steps(resize: u32, crop: u32, format: Format) -> Steps {
    let some = |pixels: u32| (pixels > 0).then_some(pixels);
    Steps { resize: some(resize), crop: some(crop), format }
}

fn recipe(resize: u32, crop: u32, format: Format) -> Recipe {
    let work = Work::Image(steps(resize, crop, format));
    Recipe { name: "x".into(), at: None, from: Choice::parse("").unwrap(), work }
}

fn make(steps: &Steps, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    steps.make(decode(bytes)?)
}

/// Height and width of an array that NumPy wrote, and its values.
fn array(npy: &[u8]) -> (u32, u32, &[u8]) {
    let head = usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    let text = std::str::from_utf8(&npy[10..10 + head]).unwrap();
    let shape = text.split_once("'shape': (").unwrap().1.split_once(", 3)").unwrap().0;
    let (height, width) = shape.split_once(", ").unwrap();
    (height.parse().unwrap(), width.parse().unwrap(), &npy[10 + head..])
}

/// The largest difference of two values, and the mean.
fn difference(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    let sum: u64 = differences.clone().map(u64::from).sum();
    (differences.max().unwrap(), sum as f64 / a.len() as f64)
}

#[test]
fn pixels_are_those_of_pillow() {
    for name in IMAGES {
        let image = decode(&read(name)).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let expected = read(&format!("{name}.pixels.npy"));
        let (height, width, pixels) = array(&expected);
        assert_eq!((image.height, image.width), (height, width), "{name}");
        let (most, mean) = difference(&image.pixels, pixels);
        if name.ends_with(".png") {
            assert_eq!(most, 0, "{name}");
        } else {
            // Decoders of JPEG round in their own ways, above all where halved colours are spread.
            assert!(mean < 1.0 && most <= 16, "{name}: {most} {mean}");
        }
    }
}

#[test]
fn resizing_and_cropping_are_those_of_torchvision() {
    for name in IMAGES.into_iter().filter(|name| name.ends_with(".png")) {
        let made = make(&steps(24, 17, Format::Npy), &read(name)).unwrap();
        let (expected, made) = (read(&format!("{name}.small.npy")), array(&made));
        let (height, width, pixels) = array(&expected);
        assert_eq!((made.0, made.1), (height, width), "{name}");
        let (most, mean) = difference(made.2, pixels);
        assert!(most <= 1 && mean < 0.1, "{name}: {most} {mean}");
    }
}

#[test]
fn sides_are_those_of_torchvision() {
    let sides = |width: u32, height: u32, shorter| {
        let pixels = vec![7; (width * height * 3) as usize];
        let image = Image { width, height, pixels }.resized(shorter).unwrap();
        (image.width, image.height)
    };
    assert_eq!(sides(500, 375, 256), (341, 256));
    assert_eq!(sides(375, 500, 256), (256, 341));
    assert_eq!(sides(10, 10, 256), (256, 256));
    assert_eq!(sides(1, 1, 1), (1, 1));
    let thin = Image { width: 1, height: 60_000, pixels: vec![0; 180_000] };
    assert!(thin.resized(256).unwrap_err().0.contains("more than"), "a side of 15 million pixels");
}

#[test]
fn a_crop_is_in_the_middle() {
    let crop = |width: u32, height: u32, side| {
        let pixels = (0..width * height).flat_map(|nth| [nth as u8, 0, 0]).collect();
        let image = Image { width, height, pixels }.cropped(side);
        (image.width, image.height, image.pixels[0])
    };
    // Python's round takes 0.5 to 0, 1.5 and 2.5 to 2.
    assert_eq!(crop(3, 1, 2), (2, 1, 0));
    assert_eq!(crop(5, 1, 2), (2, 1, 2));
    assert_eq!(crop(7, 1, 2), (2, 1, 2));
    assert_eq!(crop(4, 4, 2), (2, 2, 5));
    assert_eq!(crop(4, 2, 9), (4, 2, 0));
}

#[test]
fn each_format_gives_the_image_back() {
    let original = decode(&read("wide.jpg")).unwrap();
    for format in [Format::Png, Format::Jpeg { quality: 95 }] {
        let again = decode(&make(&steps(0, 0, format), &read("wide.jpg")).unwrap()).unwrap();
        assert_eq!((again.width, again.height), (original.width, original.height));
        let (most, mean) = difference(&again.pixels, &original.pixels);
        assert!(mean < 3.0, "{format:?}: {most} {mean}");
        assert!(format != Format::Png || most == 0);
    }
    let npy = make(&steps(0, 0, Format::Npy), &read("wide.jpg")).unwrap();
    assert_eq!(array(&npy), (original.height, original.width, &original.pixels[..]));
    let sizes = [50, 90].map(|quality| {
        make(&steps(0, 0, Format::Jpeg { quality }), &read("wide.jpg")).unwrap().len()
    });
    assert!(sizes[0] < sizes[1], "{sizes:?}");
}

#[test]
fn the_same_recipe_makes_the_same_bytes() {
    let jpeg = recipe(32, 0, Format::Jpeg { quality: 90 });
    let made = || make(&steps(32, 0, Format::Jpeg { quality: 90 }), &read("tall.jpg"));
    assert_eq!(made(), made());
    let others = [
        recipe(32, 0, Format::Jpeg { quality: 91 }),
        recipe(33, 0, Format::Jpeg { quality: 90 }),
        recipe(32, 32, Format::Jpeg { quality: 90 }),
        recipe(32, 0, Format::Png),
    ];
    others.iter().for_each(|other| assert_ne!(other.key(), jpeg.key(), "{other:?}"));
    let renamed = Recipe { name: "y".into(), from: Choice::parse("*").unwrap(), ..jpeg.clone() };
    assert_eq!(renamed.key(), jpeg.key());
}

#[test]
fn a_file_that_is_cut_off_is_refused() {
    for name in IMAGES {
        let whole = read(name);
        for part in 1..40 {
            let cut = &whole[..whole.len() * part / 40];
            assert!(decode(cut).is_err(), "{name}: {part} of 40");
        }
        // Without the sum of its last part a PNG still has all pixels.
        let last = whole.len() - 2;
        assert!(name.ends_with(".png") || decode(&whole[..last]).is_err(), "{name}");
    }
    assert!(decode(b"").unwrap_err().0.contains("no JPEG and no PNG"));
    assert!(decode(b"GIF89a").is_err());
}

/// Each of them with bytes changed here and there. A decoder may take what is left for an image, and never more.
#[test]
fn damaged_files_cost_no_panic() {
    for name in IMAGES {
        let whole = read(name);
        for nth in 0..400_usize {
            let mut bytes = whole.clone();
            for change in 0..=nth % 3 {
                let at = (nth * 7919 + change * 104_729) % bytes.len();
                bytes[at] = (nth * 31 + change * 17) as u8;
            }
            if let Ok(image) = decode(&bytes) {
                let size = u64::from(image.width) * u64::from(image.height) * 3;
                assert_eq!(image.pixels.len() as u64, size, "{name} {nth}");
            }
        }
    }
}

/// The head of a PNG with a thousand million pixels, and that of a JPEG with the largest sides.
#[test]
fn images_of_too_many_pixels_are_refused_by_their_heads() {
    let mut png = read("wide.png");
    let side = 31_623_u32.to_be_bytes();
    png[16..20].copy_from_slice(&side);
    png[20..24].copy_from_slice(&side);
    let sum = crc(&png[12..29]).to_be_bytes();
    png[29..33].copy_from_slice(&sum);
    let mut jpeg = read("wide.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xff);
    for image in [png, jpeg] {
        let steps = steps(20, 0, Format::Png);
        for refused in [steps.memory(&image).map(drop), decode(&image).map(drop)] {
            let Fault(reason) = refused.unwrap_err();
            assert!(reason.contains("pixels; more than"), "{reason}");
        }
    }
}

/// The sum that PNG has of each of its parts.
fn crc(bytes: &[u8]) -> u32 {
    let bit = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    let byte = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), |sum, _| bit(sum));
    !bytes.iter().fold(!0, byte)
}

#[test]
fn files_are_chosen_by_their_paths() {
    let takes =
        |pattern: &str, path: &str| Choice::parse(pattern).unwrap().chooses(Path::new(path));
    assert!(
        takes("", "a/b.JPEG") && takes("", "b.png") && !takes("", "b.txt") && !takes("", "jpg")
    );
    assert!(
        takes("train/**/*.JPEG", "train/n1/a.JPEG") && takes("train/**/*.JPEG", "train/a.JPEG")
    );
    assert!(
        !takes("train/**/*.JPEG", "val/n1/a.JPEG") && !takes("train/*.JPEG", "train/n1/a.JPEG")
    );
    assert!(takes("./a/*", "a/b"));
    let below = |pattern: &str, path: &str| {
        Choice::parse(pattern).unwrap().may_be_below(&PathBuf::from(path))
    };
    assert!(below("train/**/*.JPEG", "") && below("train/**/*.JPEG", "train"));
    assert!(below("train/**/*.JPEG", "train/n1") && !below("train/**/*.JPEG", "val"));
    assert!(below("", "val") && below("*.jpg", "") && below("a/b*/c.jpg", "a/x"));
    for wrong in ["/train/*", "../x/*", "a/***", "train/", "./", "a//b"] {
        assert!(Choice::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn memory_is_that_of_what_is_decoded_and_resized() {
    let wide = read("wide.jpg");
    let pixels = 64 * 45 * 3;
    let as_it_is = steps(0, 0, Format::Npy).memory(&wide).unwrap();
    assert!((3 * pixels..8 * pixels).contains(&as_it_is), "{as_it_is}");
    let larger = steps(450, 0, Format::Npy).memory(&wide).unwrap();
    assert!(larger > 2 * 640 * 450 * 3, "{larger}");
    assert!(steps(8192, 0, Format::Npy).memory(&wide).is_err(), "95 million pixels");
    assert!(steps(0, 0, Format::Npy).memory(b"x").is_err());
}

#[test]
fn a_guess_is_near() {
    let bytes = read("wide.jpg");
    for steps in [
        steps(32, 0, Format::Jpeg { quality: 90 }),
        steps(32, 32, Format::Npy),
        steps(0, 0, Format::Jpeg { quality: 90 }),
    ] {
        let (made, guess) =
            (make(&steps, &bytes).unwrap().len() as u64, steps.guess(bytes.len() as u64));
        assert!(guess >= made / 8 && guess <= made * 8, "{steps:?}: {made} {guess}");
    }
    assert_eq!(steps(0, 0, Format::Png).guess(0), 1);
    assert!(steps(0, 0, Format::Npy).guess(u64::MAX) < 1 << 30);
}
