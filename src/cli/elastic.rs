//! Columns of kubectl's `describe`: cells end in a tab, and a column is as wide as its widest cell in the lines that
//! follow each other without a gap.
//!
//! Source: Go text/tabwriter, with a padding of two blanks.

/// Blanks between columns.
const PADDING: usize = 2;

/// Replaces the tabs of `text` by blanks.
///
/// - Shape: the last cell of a line is not padded and widens no column.
pub(super) fn align_columns(text: &str) -> String {
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split('\t').collect()).collect();
    let mut widths: Vec<Vec<usize>> = lines.iter().map(|l| vec![0; l.len() - 1]).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    for column in 0..columns {
        let mut from = 0;
        while from < lines.len() {
            // A block: lines that have a cell ended by a tab in this column.
            let has = |n: usize| lines[n].len() > column + 1;
            if !has(from) {
                from += 1;
                continue;
            }
            let end = (from..lines.len())
                .find(|n| !has(*n))
                .unwrap_or(lines.len());
            let widest = lines[from..end]
                .iter()
                .map(|l| l[column].chars().count())
                .max()
                .unwrap_or(0);
            for line in &mut widths[from..end] {
                line[column] = widest + PADDING;
            }
            from = end;
        }
    }
    let mut out = String::with_capacity(text.len() * 2);
    for (line, widths) in lines.iter().zip(&widths) {
        for (cell, width) in line.iter().zip(widths) {
            out.push_str(cell);
            out.extend(core::iter::repeat_n(
                ' ',
                width - cell.chars().count().min(*width),
            ));
        }
        out.push_str(line.last().unwrap_or(&""));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_widths_of_their_own() {
        for (text, aligned) in [
            (
                "Name:\tx\nNamespace:\ty\n",
                "Name:       x\nNamespace:  y\n",
            ),
            (
                "Name:\tx\nIPs:\n  IP:\t1\nLonger name:\t2\n",
                "Name:  x\nIPs:\n  IP:         1\nLonger name:  2\n",
            ),
            ("a\tb\tc\naaa\tb\tc\n", "a    b  c\naaa  b  c\n"),
            ("ä\tb\naa\tb\n", "ä   b\naa  b\n"),
            ("a\t\tb\naa\t\tb\n", "a     b\naa    b\n"),
            ("no tabs\n", "no tabs\n"),
            ("", ""),
        ] {
            assert_eq!(align_columns(text), aligned);
        }
    }
}
