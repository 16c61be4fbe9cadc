//! Colours of pictures: names that the page's styles define for each colour scheme.
//!
//! The plotting library knows colours by value only. It draws with placeholders that no picture uses otherwise, and the finished
//! drawing gets the styles' variables in their place.

use plotters::style::RGBColor;

/// Text and axes.
pub(crate) const INK: RGBColor = RGBColor(1, 2, 3);
/// Grid lines.
pub(crate) const FAINT: RGBColor = RGBColor(1, 2, 4);
/// Series, told apart without colour too: each has its own mark. The last has the text's colour.
pub(crate) const SERIES: [RGBColor; 6] =
    [RGBColor(1, 3, 1), RGBColor(1, 3, 2), RGBColor(1, 3, 3), RGBColor(1, 3, 4), RGBColor(1, 3, 5), INK];

/// Puts the styles' variables in place of the placeholders, and names the picture for those who do not see it.
/// The title stands in an attribute as it is: without `"`, `<` and `&`.
pub(crate) fn themed(svg: &str, title: &str) -> String {
    let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{title}\" "), 1);
    let names = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5"];
    let pairs = [(INK, "--ink"), (FAINT, "--line")].into_iter().chain(SERIES.into_iter().zip(names));
    pairs.fold(svg, |svg, (colour, name)| {
        let RGBColor(r, g, b) = colour;
        svg.replace(&format!("#{r:02X}{g:02X}{b:02X}"), &format!("var({name})"))
    })
}
