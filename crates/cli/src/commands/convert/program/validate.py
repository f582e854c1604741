# Runs programs on tensors of files and writes what they give: FORM, then MODEL INPUTS OUTPUTS of each.
import json
import sys

from safetensors.numpy import load_file, save_file

form, rest = sys.argv[1], sys.argv[2:]


def by_onnxruntime(model):
    import onnx
    import onnxruntime

    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    taken = [value.name for value in session.get_inputs()]
    return lambda given: dict(zip(names, session.run(names, {name: given[name] for name in taken})))


def by_paddle(model):
    import numpy
    import paddle

    paddle.enable_static()
    executor = paddle.static.Executor(paddle.CPUPlace())
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        program, feeds, fetches = paddle.static.load_inference_model(model, executor)
    with open(model + ".json", encoding="utf-8") as file:
        ops = json.load(file)["program"]["regions"][0]["blocks"][0]["ops"]
    attrs = [{attr["N"]: attr["AT"]["D"] for attr in op["A"]} for op in ops if op["#"] == "1.fetch"]
    names = [attr["name"] for attr in sorted(attrs, key=lambda attr: attr["col"])]

    def call(given):
        with paddle.static.scope_guard(scope):
            found = executor.run(program, feed={name: given[name] for name in feeds}, fetch_list=fetches)
        return {name: numpy.asarray(value) for name, value in zip(names, found)}

    return call


ready = {}
for model, inputs, outputs in zip(rest[::3], rest[1::3], rest[2::3]):
    if model not in ready:
        ready[model] = (by_onnxruntime if form == "onnx" else by_paddle)(model)
    found = ready[model](load_file(inputs))
    save_file({name: value.copy() for name, value in found.items()}, outputs)
