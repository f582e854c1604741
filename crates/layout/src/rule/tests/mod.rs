//! Decisions on random ops and layouts: sound when executed, pure, and never beaten by another choice.

mod ops;

use super::choice::{Choice, Place, Role};
use super::decide::votes;
use super::price::Pricing;
use super::*;
use crate::{Layout, Mesh, Placement, Rank, Route, Shape, Shard, simulate};
use ops::{Nd, Op, op};
use proptest::prelude::*;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 2000, ..ProptestConfig::default() }
}

fn mesh() -> impl Strategy<Value = Mesh> {
    prop::collection::vec(1usize..4, 1..=3).prop_map(|sizes| {
        let axes: Vec<(&str, usize)> = ["a", "b", "c"].into_iter().zip(sizes).collect();
        Mesh::new(&axes).unwrap()
    })
}

/// Seeds for one placement each: what, dim, sections, order, reduction.
type Seeds = Vec<Vec<(usize, usize, usize, usize)>>;

fn layouts(mesh: &Mesh, shapes: &[Shape], seeds: &Seeds) -> Vec<Layout> {
    let one = |(shape, seeds): (&Shape, &Vec<(usize, usize, usize, usize)>)| {
        let mut layout = Layout::replicated(mesh, shape);
        for (axis, &(what, dim, sections, order)) in seeds.iter().take(mesh.naxes()).enumerate() {
            let sections = if sections < 4 { 1 } else { sections - 2 };
            let placement = match what {
                0..=2 => continue,
                3..=7 if shape.ndim() > 0 => {
                    Placement::Shard(Shard { dim: dim % shape.ndim(), sections, order })
                }
                // The last seed decides the kind, so that several pending reductions may stand together.
                _ => Placement::Partial(Reduce::EVERY[seeds[3].1 % 5]),
            };
            layout = layout.with(axis, placement).unwrap();
        }
        layout
    };
    shapes.iter().zip(seeds).map(one).collect()
}

fn seeds() -> impl Strategy<Value = Seeds> {
    prop::collection::vec(prop::collection::vec((0usize..10, 0usize..20, 0usize..6, 0usize..3), 4), 3)
}

fn case() -> impl Strategy<Value = (Op, Vec<Layout>)> {
    (op(), mesh(), seeds(), any::<bool>()).prop_map(|(op, mesh, mut seeds, alike)| {
        let shapes = op.inputs();
        if alike {
            // The same seeds for all give agreements, and conflicts between operands of different shapes.
            (seeds[1], seeds[2]) = (seeds[0].clone(), seeds[0].clone());
        }
        let layouts = layouts(&mesh, &shapes, &seeds);
        (op, layouts)
    })
}

/// Cases in which everything divides: meshes of powers of two, extents of many.
fn even_case() -> impl Strategy<Value = (Op, Vec<Layout>)> {
    let mesh = prop::collection::vec(1usize..3, 1..=3).prop_map(|sizes| {
        let axes: Vec<(&str, usize)> = ["a", "b", "c"].into_iter().zip(sizes).collect();
        Mesh::new(&axes).unwrap()
    });
    (op(), mesh, seeds()).prop_map(|(op, mesh, mut seeds)| {
        let op = op.times(8);
        seeds.iter_mut().flatten().for_each(|seed| seed.2 = 0);
        let layouts = layouts(&mesh, &op.inputs(), &seeds);
        (op, layouts)
    })
}

fn operands(layouts: &[Layout]) -> Vec<Operand<'_>> {
    layouts.iter().map(|layout| Operand { layout, size: 4 }).collect()
}

fn sized(shapes: &[Shape]) -> Vec<(&Shape, usize)> {
    shapes.iter().map(|shape| (shape, 4)).collect()
}

/// The values behind some contributions, and the contributions. Factors of a product stay small powers of
/// two: what is added to a huge one would be lost in one order of a sum and not in another.
fn contributions(layout: &Layout, salt: usize) -> (Vec<f64>, simulate::Locals) {
    let axes: Vec<usize> = layout.partial_axes().iter().collect();
    let multiplied = layout.placements().contains(&Placement::Partial(Reduce::Prod));
    let value = |i: usize| ((i * 7 + salt) % 5) as f64 - 2.0;
    let value = |i: usize| if multiplied { value(i).clamp(-1.0, 1.0) } else { value(i) };
    let value: Vec<f64> = (0..layout.shape().numel()).map(value).collect();
    let factor = |at: usize| if multiplied { [1.0, 2.0, 0.5][at] } else { 1.0 + at as f64 };
    let weight = |at: &[usize]| axes.iter().map(|&a| factor(at[a])).product();
    let locals = simulate::scatter(layout, &value, weight).unwrap();
    (simulate::gather(layout, &locals).unwrap().unwrap(), locals)
}

fn close(x: &[f64], y: &[f64]) -> bool {
    x.len() == y.len() && x.iter().zip(y).all(|(a, b)| (a - b).abs() <= 1e-9 * (1.0 + b.abs()))
}

/// Runs the op rank by rank under the decision and on the whole tensors, and compares.
fn check_execution(op: &Op, layouts: &[Layout], decision: &Decision) {
    let mesh = layouts[0].mesh();
    let (mut wholes, mut held) = (Vec::new(), Vec::new());
    for (salt, (layout, wanted)) in layouts.iter().zip(&decision.inputs).enumerate() {
        let (value, locals) = contributions(layout, salt);
        wholes.push(Nd::new(layout.shape(), value));
        held.push(simulate::reshard(layout, wanted, &locals).unwrap());
    }
    let want = op.run(&wholes, &op.outputs());
    let mut made: Vec<simulate::Locals> = vec![Vec::new(); decision.outputs.len()];
    for (position, rank) in mesh.ranks().enumerate() {
        let shape = |layout: &Layout, rank: Rank| Shape::new(&layout.piece(rank).unwrap().extents()).unwrap();
        let local = |i: usize| Nd::new(&shape(&decision.inputs[i], rank), held[i][position].clone());
        let inputs: Vec<Nd> = (0..layouts.len()).map(local).collect();
        let outputs: Vec<Shape> = decision.outputs.iter().map(|l| shape(l, rank)).collect();
        for (made, out) in made.iter_mut().zip(op.run(&inputs, &outputs)) {
            made.push(out.data);
        }
    }
    for ((layout, made), want) in decision.outputs.iter().zip(&made).zip(&want) {
        let got = simulate::gather(layout, made).unwrap();
        let got = got.unwrap_or_else(|| panic!("copies differ: {op:?} {layouts:?} {decision:?}"));
        assert!(close(&got, &want.data), "{op:?} {layouts:?} {decision:?}\n{got:?}\n{:?}", want.data);
    }
}

/// Every role that the search may give an axis.
fn all_roles(rule: &Rule, layouts: &[Layout], axis: usize) -> Vec<Role> {
    let mut roles = vec![Role::Whole];
    let placements = || layouts.iter().map(|l| l.placements()[axis]);
    if placements().any(|p| matches!(p, Placement::Shard(_))) {
        roles.extend((0..rule.factors.len()).map(|factor| Role::Cut { factor, sections: 1 }));
        for (i, layout) in layouts.iter().enumerate() {
            let votes = (0..layout.shape().ndim()).flat_map(|d| votes(rule, Place::Input(i), layout, d));
            let mine = votes.filter(|vote| vote.axis == axis && vote.sections > 1);
            roles.extend(mine.map(|v| Role::Cut { factor: v.factor, sections: v.sections }));
        }
    }
    for (group, through) in rule.through.iter().enumerate() {
        let pending = |r: &&Reduce| placements().any(|p| p == Placement::Partial(**r));
        roles.extend(through.reduces.iter().filter(pending).map(|&reduce| Role::Pass { group, reduce }));
    }
    roles
}

/// The lowest estimate of any sound choice, every order of the axes included.
fn brute_force(rule: &Rule, layouts: &[Layout], outputs: &[Shape]) -> u128 {
    let mesh = layouts[0].mesh();
    let roles: Vec<Vec<Role>> = (0..mesh.naxes()).map(|axis| all_roles(rule, layouts, axis)).collect();
    let counts: Vec<usize> = roles.iter().map(Vec::len).collect();
    let (operands, sized, terms) = (operands(layouts), sized(outputs), Terms::default());
    let pricing = Pricing::new(rule, &operands, &sized, &terms);
    let mut best: Option<u128> = None;
    crate::layout::each_index(&counts, |index| {
        let roles: smallvec::SmallVec<[Role; 4]> =
            index.iter().zip(&roles).map(|(&i, list)| list[i]).collect();
        let cutting: Vec<usize> =
            (0..roles.len()).filter(|&a| matches!(roles[a], Role::Cut { .. })).collect();
        for order in permutations(&cutting) {
            let choice = Choice { roles: roles.clone(), order: order.into_iter().collect() };
            if choice.is_sound(rule, mesh) {
                let total = pricing.key(&choice).total;
                best = Some(best.map_or(total, |least| least.min(total)));
            }
        }
    });
    best.unwrap()
}

fn permutations(list: &[usize]) -> Vec<Vec<usize>> {
    if list.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (i, &first) in list.iter().enumerate() {
        let mut rest = list.to_vec();
        rest.remove(i);
        all.extend(permutations(&rest).into_iter().map(|tail| [vec![first], tail].concat()));
    }
    all
}

fn decided(op: &Op, layouts: &[Layout], terms: &Terms<'_>) -> Decision {
    decide(&op.rule(), &operands(layouts), &sized(&op.outputs()), terms).unwrap()
}

fn routed(from: &Layout, to: &Layout) -> u64 {
    Route::find(from, to, 4).unwrap().cost().bytes
}

proptest! {
    #![proptest_config(config(3000))]

    #[test]
    fn decisions_are_sound_pure_and_cost_what_their_routes_cost((op, layouts) in case(), stay in any::<bool>()) {
        let policy = if stay { Policy::Stay } else { Policy::Cheapest };
        let terms = Terms { policy, ..Terms::default() };
        let decision = decided(&op, &layouts, &terms);
        prop_assert_eq!(&decision, &decided(&op, &layouts, &terms));
        let moved: u64 = layouts.iter().zip(&decision.inputs).map(|(from, to)| routed(from, to)).sum();
        prop_assert_eq!(decision.price.moved, moved);
        let settled: u128 = decision.outputs.iter().map(|layout| settlement(layout, 4)).sum();
        prop_assert_eq!(u128::from(decision.price.settled), settled);
        for layout in decision.inputs.iter().chain(&decision.outputs) {
            prop_assert_eq!(layout, &Layout::new(layout.mesh(), layout.shape(), layout.placements()).unwrap());
        }
        check_execution(&op, &layouts, &decision);
    }

    #[test]
    fn nothing_is_dearer_than_replicating_everything((op, layouts) in case()) {
        let whole = |layout: &Layout| Layout::replicated(layout.mesh(), layout.shape());
        let most: u64 = layouts.iter().map(|layout| routed(layout, &whole(layout))).sum();
        let decision = decided(&op, &layouts, &Terms::default());
        prop_assert!(decision.price.total() <= most, "{:?} for {} bytes: {:?} {:?}", decision, most, op, layouts);
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn no_other_choice_is_cheaper((op, layouts) in even_case()) {
        let best = brute_force(&op.rule(), &layouts, &op.outputs());
        let decision = decided(&op, &layouts, &Terms::default());
        let (rule, outputs, terms) = (op.rule(), op.outputs(), Terms::default());
        let (operands, sized) = (operands(&layouts), sized(&outputs));
        let found = search::finalists(&mut Pricing::new(&rule, &operands, &sized, &terms))[0].1;
        // Not every order of axes that are new to a factor is tried.
        prop_assert!(found * 4 <= best * 5, "{} {} {:?} {:?}", found, best, op, layouts);
        let mut all = weigh(&rule, &operands, &sized, &terms).unwrap();
        prop_assert_eq!(all.remove(0), decision.clone(), "what was weighed begins with what was taken");
        // Those whose estimate was hopeless are not held against it by their routes.
        prop_assert!(all.iter().all(|other| 2 * other.price.total() >= decision.price.total()), "{:?} {:?}", decision, all);
    }

    #[test]
    fn outputs_come_out_where_they_are_wanted((op, layouts) in even_case(), seeds in seeds()) {
        let mesh = layouts[0].mesh();
        let wanted = self::layouts(mesh, &op.outputs(), &seeds);
        let wishes = [Some(&wanted[0])];
        let terms = Terms { wishes: &wishes, ..Terms::default() };
        let decision = decided(&op, &layouts, &terms);
        prop_assert_eq!(decision.price.settled, routed(&decision.outputs[0], &wanted[0]));
        let plain = decided(&op, &layouts, &Terms::default());
        let later = plain.price.moved + plain.price.exchanged + routed(&plain.outputs[0], &wanted[0]);
        // From one pending reduction to another the estimates by which the search goes are high.
        prop_assert!(decision.price.total() <= later * 3, "{:?} {:?} {}: {:?} {:?}", op, layouts, wanted[0], decision, plain);
    }
}

#[test]
fn inputs_of_a_product_follow_from_its_output_alone() {
    let (m, k, n) = (8, 6, 4);
    let op = Op::Linear { m, k, n };
    let mesh: Mesh = "dp=2 tp=2".parse().unwrap();
    let given: Vec<Layout> = op.inputs().iter().map(|shape| Layout::replicated(&mesh, shape)).collect();
    let wanted: Layout = "[8,4] @ dp:S0 tp:S1 on dp=2 tp=2".parse().unwrap();
    let wishes = [Some(&wanted)];
    let found = decided(&op, &given, &Terms { wishes: &wishes, ..Terms::default() });
    assert_eq!(found.outputs, [wanted]);
    let texts: Vec<String> = found.inputs.iter().map(Layout::to_string).collect();
    let expected = ["[8,6] @ dp:S0 tp:R", "[6,4] @ dp:R tp:S1", "[4] @ dp:R tp:S0"];
    assert_eq!(texts, expected.map(|text| format!("{text} on dp=2 tp=2")));
}

/// `x - mean(x)` over the last dim, whose kernel exchanges the sums of rows, with a weight along that dim.
fn centred(rows: usize, width: usize) -> Rule {
    let mut rule = Rule::default();
    let (row, column) = (rule.free(rows), rule.free(width));
    rule.input(&[Some(row), Some(column)]);
    rule.input(&[Some(column)]);
    rule.output(&[Some(row), Some(column)]);
    rule.exchange(&[column], &[row], 4);
    rule
}

#[test]
fn a_cut_weight_does_not_make_a_kernel_talk() {
    let place = |texts: [&str; 2], rows: usize| {
        let layouts = texts.map(|text| format!("{text} on tp=4").parse::<Layout>().unwrap());
        let shape = layouts[0].shape().clone();
        decide(&centred(rows, 8), &operands(&layouts), &[(&shape, 4)], &Terms::default()).unwrap()
    };
    let found = place(["[64,8] @ tp:R", "[8] @ tp:S0"], 64);
    assert_eq!(found.inputs[0].to_string(), "[64,8] @ tp:R on tp=4", "the small weight is gathered");
    assert_eq!(found.price, Price { moved: 24, exchanged: 0, settled: 0 });
    let found = place(["[2,8] @ tp:S1", "[8] @ tp:S0"], 2);
    assert_eq!(
        found.price,
        Price { moved: 0, exchanged: 24, settled: 0 },
        "two sums cost less than gathering"
    );
}

#[test]
fn what_is_added_to_products_over_many_ranks_is_not_lost() {
    let mesh = "on a=3 b=2 c=3";
    let texts = ["[2,5] @ a:R b:S0 c:S0", "[5,5] @ a:P(prod) b:P(prod) c:P(prod)", "[5] @ a:R b:S0 c:R"];
    let layouts = texts.map(|text| format!("{text} {mesh}").parse::<Layout>().unwrap());
    let op = Op::Linear { m: 2, k: 5, n: 5 };
    check_execution(&op, &layouts, &decided(&op, &layouts, &Terms::default()));
}
