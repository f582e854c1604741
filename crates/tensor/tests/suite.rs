//! All integration tests of the package, in one program: it links once.

mod attention;
mod collectives;
mod composed;
mod derivatives;
mod groups;
mod history;
mod in_place;
mod meshes;
mod named;
mod pieces;
mod soundness;
mod split;
mod supposed;
mod training;
