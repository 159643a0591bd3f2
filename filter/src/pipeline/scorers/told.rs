//! Scores from what engines say of themselves: shared by the parts that read it.

use crate::pipeline::positions::Positions;

/// Gives each pod the score that `of` makes of what its engine said. One whose engine said nothing lately gets the mean of the
/// others: silence is neither a merit nor a fault.
pub fn score(among: &Positions, scores: &mut [f32], of: impl Fn(usize) -> Option<f32>) {
    let (mut sum, mut count) = (0.0, 0.0_f32);
    for score in among.iter().filter_map(&of) {
        sum += score;
        count += 1.0;
    }
    let neutral = if count > 0.0 { sum / count } else { 1.0 };
    for pod in among.iter() {
        if let Some(score) = scores.get_mut(pod) {
            *score = of(pod).unwrap_or(neutral);
        }
    }
}

/// 1 for the least of the numbers that engines said, falling in proportion to 0 for the greatest; 1 for all where they are equal.
pub fn least_first(among: &Positions, scores: &mut [f32], of: impl Fn(usize) -> Option<f32>) {
    let told = || among.iter().filter_map(&of);
    let (least, most) = told().fold((f32::INFINITY, 0.0_f32), |(least, most), n| (least.min(n), most.max(n)));
    let span = most - least;
    score(among, scores, |pod| {
        Some(if span > 0.0 { (most - of(pod)?) / span } else { of(pod).map(|_| 1.0)? })
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_nothing_is_as_good_as_the_others_are_on_the_whole() {
        let told = [Some(0.0), None, Some(8.0), Some(2.0)];
        let mut scores = [0.0; 4];
        least_first(&Positions::first(4), &mut scores, |pod| told[pod]);
        assert_eq!(scores, [1.0, (1.0 + 0.0 + 0.75) / 3.0, 0.0, 0.75]);
        let mut scores = [0.0; 4];
        least_first(&Positions::first(4), &mut scores, |_| None);
        assert_eq!(scores, [1.0; 4]);
        least_first(&Positions::first(2), &mut scores, |_| Some(3.0));
        assert_eq!(scores, [1.0; 4]);
    }
}
