//! stub
use planaria_array::Array;
pub(crate) struct ExactNorm(f64);
impl ExactNorm {
    pub(crate) fn new() -> ExactNorm { ExactNorm(0.0) }
    pub(crate) fn add(&mut self, a: &Array) -> crate::Result<()> { for v in a.to_vec::<f32>()? { self.0 += f64::from(v) * f64::from(v); } Ok(()) }
    pub(crate) fn limbs(&self) -> Vec<i64> { vec![(self.0 * 1e9) as i64] }
    pub(crate) fn from_limbs(l: &[i64]) -> Option<ExactNorm> { Some(ExactNorm(l[0] as f64 / 1e9)) }
    pub(crate) fn norm(&self) -> f64 { self.0.sqrt() }
}
