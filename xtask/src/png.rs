//! Packs a picture: the 64 commonest colours, and for any other the one that looks most like it. Of a page that is a quarter of
//! the bytes.
//!
//! Source: PNG specification, third edition, sections 5, 7, 9 and 11.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
};

use flate2::{Compression, Crc, read::ZlibDecoder, write::ZlibEncoder};

use crate::Failure;

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Colours of a palette.
const MAX_COLORS: usize = 64;

type Color = [u8; 3];

/// The picture in fewer bytes. It is one without transparency, as browsers take them.
pub(crate) fn pack(picture: &[u8]) -> Result<Vec<u8>, Failure> {
    let (width, pixels) = pixels(picture)?;
    let mut counts: BTreeMap<Color, u32> = BTreeMap::new();
    for pixel in &pixels {
        *counts.entry(*pixel).or_default() += 1;
    }
    let palette = commonest(&counts);
    let places: BTreeMap<Color, u8> = counts.keys().map(|c| (*c, nearest(*c, &palette))).collect();
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::best());
    for row in pixels.chunks(width) {
        // No filter: neighbours of a palette have nothing to do with each other.
        let row = row.iter().map(|pixel| places[pixel]);
        rows.write_all(&std::iter::once(0).chain(row).collect::<Vec<u8>>())?;
    }
    let mut head = picture[16..24].to_vec();
    // 8 bits a pixel, from a palette.
    head.extend([8, 3, 0, 0, 0]);
    let colors: Vec<u8> = palette.into_flattened();
    let mut packed = SIGNATURE.to_vec();
    for (kind, data) in [
        (b"IHDR", head),
        (b"PLTE", colors),
        (b"IDAT", rows.finish()?),
        (b"IEND", Vec::new()),
    ] {
        let mut crc = Crc::new();
        crc.update(kind);
        crc.update(&data);
        packed.extend(u32::try_from(data.len())?.to_be_bytes());
        packed.extend(kind);
        packed.extend(data);
        packed.extend(crc.sum().to_be_bytes());
    }
    Ok(packed)
}

/// At most [`MAX_COLORS`].
fn commonest(counts: &BTreeMap<Color, u32>) -> Vec<Color> {
    let mut all: Vec<_> = counts
        .iter()
        .map(|(color, count)| (*count, *color))
        .collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.truncate(MAX_COLORS);
    all.into_iter().map(|(_, color)| color).collect()
}

/// The place of the colour that looks most like this one.
fn nearest(color: Color, palette: &[Color]) -> u8 {
    let far = |of: &Color| -> u32 {
        let parts = of.iter().zip(color);
        parts.map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum()
    };
    let places = palette.iter().zip(0..=u8::MAX);
    places.min_by_key(|(of, _)| far(of)).map_or(0, |(_, at)| at)
}

/// Width and pixels.
fn pixels(picture: &[u8]) -> Result<(usize, Vec<Color>), Failure> {
    let mut rest = picture.strip_prefix(SIGNATURE).ok_or("no PNG")?;
    let (mut width, mut data) = (0, Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length))?;
        let kind = after.get(..4).ok_or("cut short")?;
        let body = after.get(4..4 + length).ok_or("cut short")?;
        match kind {
            b"IHDR" => {
                if body[8..] != [8, 2, 0, 0, 0] {
                    return Err(format!("another kind of PNG: {:?}", &body[8..]).into());
                }
                width = usize::try_from(u32::from_be_bytes(body[..4].try_into()?))?;
            }
            b"IDAT" => data.extend(body),
            _ => {}
        }
        rest = after.get(4 + length + 4..).ok_or("cut short")?;
    }
    let mut bytes = Vec::new();
    ZlibDecoder::new(&*data).read_to_end(&mut bytes)?;
    let mut above = vec![0; width * 3];
    let mut pixels = Vec::new();
    for line in bytes.chunks_exact(width * 3 + 1) {
        let mut row = line[1..].to_vec();
        for at in 0..row.len() {
            let left = at.checked_sub(3).map_or(0, |n| row[n]);
            let corner = at.checked_sub(3).map_or(0, |n| above[n]);
            row[at] = row[at].wrapping_add(match line[0] {
                0 => 0,
                1 => left,
                2 => above[at],
                3 => left.midpoint(above[at]),
                4 => paeth(left, above[at], corner),
                odd => return Err(format!("filter {odd}").into()),
            });
        }
        pixels.extend(row.chunks_exact(3).map(|p| [p[0], p[1], p[2]]));
        above = row;
    }
    Ok((width, pixels))
}

fn paeth(left: u8, up: u8, corner: u8) -> u8 {
    let [a, b, c] = [left, up, corner].map(i32::from);
    let near = |of: i32| (a + b - c - of).abs();
    if near(a) <= near(b) && near(a) <= near(c) {
        left
    } else if near(b) <= near(c) {
        up
    } else {
        corner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of 3 columns with a filter for each of its rows.
    fn picture(rows: &[[u8; 10]]) -> Vec<u8> {
        let mut data = ZlibEncoder::new(Vec::new(), Compression::fast());
        data.write_all(rows.as_flattened()).expect("memory");
        let data = data.finish().expect("memory");
        let mut png = SIGNATURE.to_vec();
        let rows = u8::try_from(rows.len()).expect("few");
        let head = [0, 0, 0, 3, 0, 0, 0, rows, 8, 2, 0, 0, 0];
        for (kind, body) in [(b"IHDR", &head[..]), (b"IDAT", &data), (b"IEND", &[])] {
            png.extend(u32::try_from(body.len()).expect("short").to_be_bytes());
            png.extend(kind);
            png.extend(body);
            png.extend([0; 4]);
        }
        png
    }

    #[test]
    fn filters_are_undone() {
        let rows = [
            [0, 10, 20, 30, 10, 20, 30, 1, 2, 3],
            [1, 10, 20, 30, 0, 0, 0, 5, 5, 5],
            [2, 0, 0, 0, 1, 1, 1, 0, 0, 0],
            [3, 5, 10, 15, 1, 1, 1, 0, 0, 0],
            [4, 1, 0, 0, 0, 2, 0, 0, 0, 3],
        ];
        let (width, pixels) = pixels(&picture(&rows)).expect("a picture");
        assert_eq!((width, pixels.len()), (3, 15));
        assert_eq!(pixels[3..6], [[10, 20, 30], [10, 20, 30], [15, 25, 35]]);
        assert_eq!(pixels[6..9], [[10, 20, 30], [11, 21, 31], [15, 25, 35]]);
        assert_eq!(pixels[9..12], [[10, 20, 30], [11, 21, 31], [13, 23, 33]]);
        assert_eq!(pixels[12..], [[11, 20, 30], [11, 23, 31], [13, 23, 36]]);
    }

    #[test]
    fn colours_that_look_alike_become_one() {
        let rare = (0..=255).map(|n| ([n, 0, 0], 1));
        let mut counts: BTreeMap<Color, u32> = rare.collect();
        counts.extend([([8, 8, 8], 5), ([9, 9, 9], 7)]);
        let palette = commonest(&counts);
        assert_eq!((palette.len(), palette[0]), (MAX_COLORS, [9, 9, 9]));
        assert_eq!(nearest([8, 8, 8], &palette), 1);
        assert_eq!(nearest([8, 9, 9], &palette), 0);
        let packed = pack(&picture(&[[0, 1, 2, 3, 1, 2, 3, 7, 7, 7]])).expect("packed");
        // Two of the one, one of the other.
        let colors = [1, 2, 3, 7, 7, 7];
        assert!(packed.windows(6).any(|w| w == colors), "{packed:?}");
        assert!(pixels(&packed).is_err(), "it has a palette");
    }
}
