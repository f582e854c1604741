//! Steps of optimizers, each parameter by itself.

use super::Datum;
use super::call::{Answer, Call, Found, like, refuse};
use planaria_array::{Array, DType};

pub(super) fn call(c: &Call<'_>) -> Found {
    match c.name() {
        "sgd" => sgd(c),
        "momentum" => momentum(c),
        "adamw" => adamw(c),
        _ => Ok(None),
    }
}

/// The rate as one value of the parameter's element type.
fn rate(c: &Call<'_>, at: usize, param: &Array) -> Answer<Array> {
    let rate = c.array(at)?;
    if rate.numel() != 1 {
        return refuse(format!("the learning rate has {} elements instead of one", rate.numel()));
    }
    Ok(rate.reshape(&[])?.cast(param.dtype())?)
}

fn no_master(c: &Call<'_>, at: usize) -> Answer<()> {
    if c.optional(at).is_some() || c.bool_attr("multi_precision")? {
        return refuse("steps with master weights cannot be run");
    }
    Ok(())
}

fn sgd(c: &Call<'_>) -> Found {
    no_master(c, 3)?;
    let (param, grad) = (c.array(0)?, c.array(2)?);
    let next = param.sub(&grad.cast(param.dtype())?.mul(&rate(c, 1, param)?)?)?;
    Ok(Some(vec![Datum::Array(next), Datum::Absent]))
}

fn momentum(c: &Call<'_>) -> Found {
    no_master(c, 4)?;
    let (param, velocity) = (c.array(0)?, c.array(2)?);
    let mut grad = c.array(1)?.mul(&like(param, c.real_attr("rescale_grad")?)?)?;
    if c.text_attr("regularization_method")? == "l2_decay" {
        grad = grad.add(&param.mul(&like(param, c.real_attr("regularization_coeff")?)?)?)?;
    }
    let (mu, rate) = (like(param, c.real_attr("mu")?)?, rate(c, 3, param)?);
    let next = velocity.mul(&mu)?.add(&grad)?;
    let step = if c.bool_attr("use_nesterov")? { grad.add(&next.mul(&mu)?)? } else { next.clone() };
    let param = param.sub(&step.mul(&rate)?)?;
    Ok(Some(vec![Datum::Array(param), Datum::Array(next), Datum::Absent]))
}

fn adamw(c: &Call<'_>) -> Found {
    no_master(c, 8)?;
    if c.bool_attr("amsgrad")? {
        return refuse("amsgrad cannot be run");
    }
    let state = |at: usize| -> Answer<Array> { Ok(c.array(at)?.cast(DType::F32)?) };
    let (param, grad) = (state(0)?, state(1)?);
    let absent = || Datum::Absent;
    if c.optional(9).is_some() && c.scalar(9)?.as_bool() {
        let kept = |at: usize| c.args[at].clone();
        return Ok(Some(vec![kept(0), kept(3), kept(4), absent(), kept(6), kept(7), absent()]));
    }
    let number = |at: usize| -> Answer<Array> { Ok(state(at)?.reshape(&[])?) };
    let one = Array::scalar(1.0, DType::F32)?;
    let rate = number(2)?.mul(&like(&param, c.real_attr("lr_ratio")?)?)?;
    let (beta1, beta2, eps) = (number(10)?, number(11)?, number(12)?);
    let (pow1, pow2) = (number(6)?, number(7)?);
    let moment = |old: Array, beta: &Array, new: &Array| -> Answer<Array> {
        Ok(old.mul(beta)?.add(&new.mul(&one.sub(beta)?)?)?)
    };
    let first = moment(state(3)?, &beta1, &grad)?;
    let second = moment(state(4)?, &beta2, &grad.square()?)?;
    let mut next = param.clone();
    if c.bool_attr("with_decay")? {
        next = next.mul(&one.sub(&rate.mul(&like(&param, c.real_attr("coeff")?)?)?)?)?;
    }
    let correction = one.sub(&pow2)?.sqrt()?;
    let step = rate.mul(&correction)?.div(&one.sub(&pow1)?)?;
    let scaled = first.div(&second.sqrt()?.add(&eps.mul(&correction)?)?)?;
    next = next.sub(&scaled.mul(&step)?)?;
    let powers: [Array; 2] = match c.bool_attr("use_global_beta_pow")? {
        true => [c.array(6)?.clone(), c.array(7)?.clone()],
        false => [c.array(6)?.mul(&beta1)?, c.array(7)?.mul(&beta2)?],
    };
    let back = |at: usize, new: Array| -> Answer<Datum> { Ok(Datum::Array(new.cast(c.array(at)?.dtype())?)) };
    let [power1, power2] = powers;
    Ok(Some(vec![
        back(0, next)?,
        back(3, first)?,
        back(4, second)?,
        absent(),
        Datum::Array(power1),
        Datum::Array(power2),
        absent(),
    ]))
}
