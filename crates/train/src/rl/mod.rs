//! Reinforcement learning and learning from preferences: the arithmetic of samples, rewards, advantages and losses.
//!
//! Every function is one line of the method's definition and works on plain numbers or on tensors; objectives put them
//! together ([`crate::objective`]).

mod advantage;
mod geometry;
mod http;
mod judge;
mod policy;
mod preference;
mod reference;
mod reward;
mod roll;
mod rollout;
mod sampling;
mod score;
mod still;

pub use advantage::{
    Advantages, Compared, Scale, Whitened, gae, group_advantages, leave_one_out, reinforce_returns,
    varied_groups, whiten,
};
pub(crate) use geometry::nearest;
pub use geometry::{DatasetSteps, Remainder, RolloutBatching, RolloutError, RolloutGeometry, RolloutUpdate};
pub(crate) use judge::ask_function;
pub use judge::{Judged, Reward, RewardFunction, RewardFunctions, RewardKind};
pub use policy::{
    Aggregation, KlKind, PolicyConfig, PolicyInputs, PolicyTerms, Ratio, Surrogate, ValueTerms, kl, kl_full,
    policy_terms, token_logprobs, value_terms,
};
pub use preference::{
    Preference, PreferenceLoss, PreferenceTerms, preference_terms, reward_pair_loss, sequence_logprobs,
};
pub(crate) use reference::{Reference, label_distance, label_entropy, label_logprobs, label_values};
pub use reward::{
    AdaptiveKl, RunningMoments, ShapeOptions, Shaped, combine_rewards, overlong_penalty, shape_rewards,
};
pub use roll::{Draw, Roll, Rolled, roll, roll_folder};
pub use rollout::{PaddedRollouts, Response, pad_rollouts};
pub use sampling::{TokenSampling, TokenScores};
pub(crate) use score::{ScoreModel, Scored, is_valued};
pub(crate) use still::Still;
