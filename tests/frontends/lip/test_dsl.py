"""The .lip front end: what parses, what it means, and what is said of mistakes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from lipcompile.core.derivation import Derivation
from lipcompile.core.graph import Graph
from lipcompile.core.record import Constraint
from lipcompile.diagnostics import Diagnostic, InputError
from lipcompile.frontends.options import ModelOptions
from lipcompile.numbers import Arithmetic, Symbol
from lipcompile.pipeline import check, load

HEAD = "model m { input x: tensor[4], norm <= 1\n"


def write(folder: Path, text: str, name: str = "model.lip") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def graph_of(folder: Path, text: str, options: ModelOptions | None = None) -> Graph:
    loaded = load(write(folder, text), options or ModelOptions())
    assert loaded.graph is not None, loaded.diagnostics
    return loaded.graph


def problems(folder: Path, text: str, options: ModelOptions | None = None) -> list[Diagnostic]:
    loaded = load(write(folder, text), options or ModelOptions())
    assert loaded.graph is None
    return list(loaded.diagnostics)


def values(derivation: Derivation) -> dict[str, float | None]:
    assert derivation.analysis is not None, derivation.diagnostics
    return {name: bound.value for name, bound in derivation.analysis.parameters.items()}


def test_a_last_sigmoid_is_warned_of(tmp_path: Path) -> None:
    derivation = check(write(tmp_path, HEAD + "dense(1) sigmoid loss bce }"))
    assert derivation.ok
    assert [d.code for d in derivation.diagnostics] == ["LIP214"]


def test_what_could_not_be_examined_is_not_reported_to_hold(tmp_path: Path) -> None:
    derivation = check(write(tmp_path, HEAD + "lnear(3) loss hinge }"))
    found = derivation.requirements
    assert (found.lipschitz_loss.ok, found.bounded_input.ok, found.lipschitz_layers.ok) == (False, False, False)


def test_layers_act_on_the_value_above_or_on_a_name(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, HEAD + "a = dense(6); relu; b = dense(a, 6); add(a, b) dense(2) }")
    assert [node.name for node in graph.nodes] == ["a", "b", "add", "dense"]
    assert graph.nodes[1].inputs == ("a",)
    assert graph.nodes[2].inputs == ("a", "b")
    assert graph.shape("add") == (6,)


def test_repeat_makes_parameters_of_its_own_each_time(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, HEAD + "repeat 3 { dense(4) } }")
    assert list(graph.parameters) == ["dense.weight", "dense_2.weight", "dense_3.weight"]


def test_blocks_bind_parameters_and_see_nothing_of_their_caller(tmp_path: Path) -> None:
    block = "block wide(n, factor=2) { dense(n * factor) groupsort(2) }\n"
    graph = graph_of(tmp_path, block + HEAD + "wide(4) wide(2, factor=3) }")
    assert [node.shape for node in graph.nodes if node.op.name == "dense"] == [(8,), (6,)]
    bad = problems(tmp_path, "block b() { dense(n) }\nmodel m { param n: int = 3; input x: tensor[4]\n b() }")
    assert [d.code for d in bad] == ["LIP011"]


def test_a_block_that_uses_itself_is_refused(tmp_path: Path) -> None:
    found = problems(tmp_path, "block b() { b() }\n" + HEAD + "b() }")
    assert [d.code for d in found] == ["LIP013"]


def test_frozen_parameters_are_not_trained(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, HEAD + "frozen { dense(4, bias=1); relu } dense(4, constraint=fixed) dense(2) }")
    trained = {name: parameter.trainable for name, parameter in graph.parameters.items()}
    assert trained == {"dense.weight": False, "dense.bias": False, "dense_2.weight": False, "dense_3.weight": True}


def test_branches_and_residuals(tmp_path: Path) -> None:
    graph = graph_of(
        tmp_path, HEAD + "branch { dense(3) } { dense(5) } -> concat residual(convex(0.25)) { relu } }"
    )
    concat, merge = graph.nodes[2], graph.nodes[4]
    assert graph.shape(concat.name) == (8,)
    assert merge.attributes.weights == (Fraction(3, 4), Fraction(1, 4))
    assert merge.inputs == (concat.name, "relu")


def test_split_names_its_parts(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, HEAD + "a, b = split(2, axis=0); add(a, b) }")
    assert [(node.attributes.start, node.attributes.stop) for node in graph.nodes[:2]] == [(0, 2), (2, 4)]


def test_literals_are_exact(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, "model m { input x: tensor[4], norm <= 0.1\n dense(2, constraint=spectral(1e-3)) }")
    assert graph.input.norm == Fraction(1, 10)
    assert graph.parameters["dense.weight"].constraint.bound == Fraction(1, 1000)


def test_unvalued_parameters_stay_symbols(tmp_path: Path) -> None:
    text = "model m { param c: real; input x: tensor[4], norm <= R\n dense(2, constraint=spectral(2 * c)) }"
    graph = graph_of(tmp_path, text)
    assert graph.input.norm == Symbol("R", "parameter R")
    assert graph.parameters["dense.weight"].constraint.bound == Arithmetic(
        "*", Fraction(2), Symbol("c", "parameter c")
    )
    bound = graph_of(tmp_path, text, ModelOptions(bindings={"c": Fraction(3), "R": Fraction(5)}))
    assert bound.input.norm == 5
    assert bound.parameters["dense.weight"].constraint.bound == 6


def test_symbolic_bounds_have_formulas_and_no_value(tmp_path: Path) -> None:
    text = "model m { input x: tensor[4], norm <= R\n dense(2, bias=0.5) loss hinge }"
    derivation = check(write(tmp_path, text.replace("dense(2", "dense(1")))
    assert derivation.analysis is not None
    weight, bias = derivation.analysis.parameters["dense.weight"], derivation.analysis.parameters["dense.bias"]
    assert (str(weight.expression), weight.value) == ("R", None)
    assert (str(bias.expression), bias.value) == ("1", 1.0)


def test_negative_symbolic_slopes_count_by_their_magnitude(tmp_path: Path) -> None:
    text = (
        "model m { param a: real; input x: tensor[4], norm <= 1\n dense(4) leaky_relu(0 - a) dense(1) loss hinge }"
    )
    derivation = check(write(tmp_path, text))
    assert values(derivation)["dense.weight"] is None  # max(1, |-a|), and a is open
    assert values(check(write(tmp_path, text), ModelOptions(bindings={"a": Fraction(3)})))["dense.weight"] == 3


def test_options_override_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "dense(1) loss hinge }")
    assert values(check(path)) == {"dense.weight": 1.0}
    assert values(check(path, ModelOptions(input_norm=Fraction(3), loss="hkr:alpha=4"))) == {"dense.weight": 15.0}


def test_same_padding_keeps_the_size(tmp_path: Path) -> None:
    text = 'model m { input x: tensor[1, 9, 9]\n conv2d(2, kernel=(3, 4), padding="same", dilation=2) }'
    graph = graph_of(tmp_path, text)
    assert graph.shape("conv2d") == (2, 9, 9)
    assert graph.nodes[0].attributes.padding == ((2, 2), (3, 3))


def test_imports_share_blocks_inside_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "block half() { dense(2) }", "blocks.lip")
    graph = graph_of(tmp_path, 'import "blocks.lip"\n' + HEAD + "half() }")
    assert graph.shape("dense") == (2,)
    with pytest.raises(InputError) as caught:
        load(write(tmp_path, 'import "../blocks.lip"\n' + HEAD + "}"), ModelOptions())
    assert caught.value.diagnostics[0].code == "LIP015"


def test_one_of_several_models_is_picked_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "dense(2) }\nmodel other { input x: tensor[4]\n dense(3) }")
    loaded = load(f"{path}::other", ModelOptions())
    assert loaded.graph is not None
    assert loaded.graph.shape("dense") == (3,)
    with pytest.raises(InputError, match="several models"):
        load(path, ModelOptions())


def test_the_train_block_is_a_flat_table(tmp_path: Path) -> None:
    train = "train { neighbours add_remove sampling poisson(batch=64, dataset=1000) noise optimal\n"
    train += "budget epsilon=3, delta=1e-5, epochs=20; optimizer sgd(lr=0.1, momentum=0.9) }"
    loaded = load(write(tmp_path, HEAD + "dense(2) }\n" + train), ModelOptions())
    assert loaded.training is not None
    assert loaded.training.settings == {
        "neighbours": "add_remove",
        "sampling": "poisson",
        "batch": 64,
        "dataset": 1000,
        "noise": "optimal",
        "epsilon": 3,
        "delta": Fraction(1, 100000),
        "epochs": 20,
        "optimizer": "sgd",
        "lr": Fraction(1, 10),
        "momentum": Fraction(9, 10),
    }


def test_the_schedule_says_what_is_averaged(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, HEAD + "dense(2) }\ntrain { schedule linear, average=0.25 }"), ModelOptions())
    assert loaded.training is not None
    assert loaded.training.settings == {"schedule": "linear", "average": Fraction(1, 4)}


@pytest.mark.parametrize("wrong", ["linear, average=1.5", "linear, mean=0.5", "linear, 0.5", "average=0.5"])
def test_wrong_averages_are_refused(tmp_path: Path, wrong: str) -> None:
    found = problems(tmp_path, HEAD + "dense(2) }\ntrain { schedule " + wrong + " }")
    assert [problem.code for problem in found] == ["LIP404"]


def test_images_are_augmented_as_options_say_it(tmp_path: Path) -> None:
    for said, text in (("flip", "flip"), ("shift=4", "shift:4"), ("views=2, shift=4, flip", "flip,shift:4")):
        loaded = load(write(tmp_path, HEAD + "dense(2) }\ntrain { augment " + said + " }"), ModelOptions())
        assert loaded.training is not None
        assert loaded.training.settings == {"augment": text, **({"views": 2} if "views" in said else {})}


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        ("flop", "LIP404", "takes flip, shift=PIXELS and views=NUMBER"),
        ("flip=1", "LIP404", "takes flip, shift=PIXELS and views=NUMBER"),
        ("shift", "LIP404", "takes flip, shift=PIXELS and views=NUMBER"),
        ('"flip,shift:4"', "LIP404", "takes flip, shift=PIXELS and views=NUMBER"),
        ("views=2", "LIP404", "names a change"),
        ("shift=0", "LIP012", "`shift` must be a positive integer"),
        ("flip, views=1.5", "LIP012", "`views` must be a positive integer"),
        ("flip, shift=1, flip", "LIP013", "`flip` is set twice"),
    ],
)
def test_wrong_augmentations_are_refused(wrong: str, code: str, message: str, tmp_path: Path) -> None:
    (found,) = problems(tmp_path, HEAD + "dense(2) }\ntrain { augment " + wrong + " }")
    assert found.code == code
    assert message in found.message
    assert ("`flip`" in found.help) == (wrong in ("flop",))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("budget epsilon=0", "`epsilon` must be a number above 0"),
        ("budget delta=2", "`delta` must be a number between 0 and 1"),
        ("budget delta=1", "`delta` must be a number between 0 and 1"),
        ("budget epochs=1/2", "`epochs` must be a whole number of at least 1"),
        ("budget noise_multiplier=0", "`noise_multiplier` must be a number above 0"),
        ("sampling poisson(batch=0)", "`batch` must be a whole number of at least 1"),
        ("sampling poisson(batch=200, dataset=100)", "`batch` is larger than `dataset`"),
        ("optimizer sgd(lr=0)", "`lr` must be a number above 0"),
        ("optimizer sgd(momentum=1)", "`momentum` must be a number from 0 to below 1"),
        ("noise correlated(bands=0)", "`bands` must be a whole number of at least 1"),
    ],
)
def test_settings_out_of_range_are_refused_where_they_stand(line: str, message: str, tmp_path: Path) -> None:
    (found,) = problems(tmp_path, HEAD + "dense(2) }\ntrain { " + line + " }")
    assert found.code == "LIP404"
    assert message in found.message


def test_all_mistakes_of_a_file_are_reported_and_what_hangs_off_them_is_not(tmp_path: Path) -> None:
    found = problems(tmp_path, HEAD + "dense(4)\n grupsort(2)\n dense(4)\n add(x, y)\n conv2d(3, kernle=2) }")
    lines = [(d.code, d.location.line if d.location else None) for d in found]
    assert lines == [("LIP011", 3), ("LIP011", 5), ("LIP012", 6)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # What rests on a declaration that was refused is not reported again.
        ("model m { param n: int = 2.5; input x: tensor[4]\n dense(n * 2)\n repeat n { relu } }", ["LIP012"]),
        ("model m { param n: float = 2; input x: tensor[n], norm <= n\n dense(n) loss bce }", ["LIP012"]),
        ("model m { param n: int = q; input x: tensor[4]\n loss cross_entropy(temperature=n) }", ["LIP011"]),
        ("model m { input x: tensr[4]\n a = dense(x, 2)\n add(a, x) }", ["LIP012"]),
        # Behind a residual the shape is known, and arguments of constraints need none.
        ("model m { input x: tensor[4]\n residual(add) { dense(3) }\n dense(2.5) }", ["LIP102", "LIP012"]),
        ("model m { input x: tensor[4]\n repeat 2 { residual(add) { dnse(4) } }\n dense(9) }", ["LIP011"] * 2),
        ("model m { input x: tensor[4]\n dnse(4)\n dense(2, constraint=frobenius) }", ["LIP011", "LIP012"]),
        # A wrong norm or loss keeps neither the layers from being examined, nor the other.
        ('model m { input x: tensor[4], norm <= "a"\n dense(2.5)\n loss bce }', ["LIP011", "LIP012"]),
        ("model m { input x: tensor[4]\n dens(2)\n loss cross_entropy(temperature=0) }", ["LIP212", "LIP011"]),
    ],
)
def test_one_mistake_is_one_message(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert [found.code for found in problems(tmp_path, text)] == expected


def test_all_mistakes_of_blocks_and_imports_are_reported(tmp_path: Path) -> None:
    blocks = 'import "none.lip"\nimport "../x.lip"\nblock a() { relu }\nblock a() { relu }\n'
    with pytest.raises(InputError) as caught:
        load(write(tmp_path, blocks + HEAD + "a() }"), ModelOptions())
    assert [found.code for found in caught.value.diagnostics] == ["LIP013", "LIP015", "LIP015"]


def test_a_norm_given_for_tokens_is_refused(tmp_path: Path) -> None:
    text = "model m { input x: tokens[4]\n embedding(9, 4) flatten dense(2) }"
    (found,) = problems(tmp_path, text, ModelOptions(input_norm=Fraction(1)))
    assert found.code == "LIP204"


def test_the_mark_of_byte_order_is_no_character(tmp_path: Path) -> None:
    assert graph_of(tmp_path, "\ufeff" + HEAD + "dense(2) }").shape("dense") == (2,)


@pytest.mark.parametrize(
    ("body", "code", "help_line"),
    [
        ("grupsort(2)", "LIP011", "did you mean `groupsort`?"),
        ("linear(3)", "LIP011", "write dense(features)"),
        ("layernorm", "LIP011", "write layer_norm(floor=0.5)"),
        (
            "BatchNorm",
            "LIP011",
            (
                "it couples examples (LIP101): write group_norm(1, floor=1), scale and bias(1), "
                "as `lipcompile fix` does"
            ),
        ),
        ("dense(a, 2)", "LIP011", ""),
        ("dense(2, biass=1)", "LIP012", "did you mean `bias`?"),
        ("dense()", "LIP012", "the arguments are (features)"),
        ("dense(2.5)", "LIP012", ""),
        ("dense(2, constraint=spectrum(1))", "LIP012", "did you mean `spectral`?"),
        ("dense(2, constraint=frobenius)", "LIP012", "write frobenius(2.0)"),
        ("dense(2, bias=wide)", "LIP012", "write bias=0.5 for ‖b‖ <= 0.5, or true, or false"),
        ("dense(2, clip=0)", "LIP012", "write clip=automatic"),
        ("dense(2, clip=always)", "LIP012", "write clip=automatic"),
        ("relu(clip=1)", "LIP012", "it takes no arguments"),
        ("conv2d(2, kernel=3)", "LIP102", ""),
        ("groupsort(3)", "LIP102", "choose a group size that divides it"),
        ("loss cross_entrpy", "LIP210", "did you mean `cross_entropy`?"),
        ("a = dense(4); a = dense(4)", "LIP013", "choose another name"),
        ("residual(sum) { dense(4) }", "LIP012", ""),
        ("residual(add) { dense(3) }", "LIP102", "reshape them to one shape first"),
        ("param G_x: real", "LIP013", "choose another name"),
        ("dense(4 / 0)", "LIP012", ""),
        ("clip_norm(0)", "LIP104", ""),
        ("dropout(1)", "LIP104", ""),
        ("dense(2, constraint=spectral(-1))", "LIP302", ""),
    ],
)
def test_a_mistake_has_its_code_place_and_fix(tmp_path: Path, body: str, code: str, help_line: str) -> None:
    (found,) = problems(tmp_path, HEAD + body + " }")
    assert (found.code, found.help) == (code, help_line)
    assert found.location is not None
    assert found.location.line == 2


@pytest.mark.parametrize(
    ("body", "regime"),
    [
        ("residual(mean) { dense(4); relu } residual(convex(0.1)) { relu }", "critical"),
        ("residual(add) { dense(4) }", "expansive"),
        ("dense(4, constraint=spectral(0.5)) relu", "contractive"),
        ("residual(add) { relu } sigmoid", "mixed"),
        ("a = dense(4); b = dense(a, 4); residual(mean) { relu } c = mean(a, b) d = mean(c, a)", "critical"),
    ],
)
def test_regimes_go_by_blocks_not_by_nodes(tmp_path: Path, body: str, regime: str) -> None:
    derivation = check(write(tmp_path, HEAD + body + " dense(1) loss hinge }"))
    assert derivation.analysis is not None
    assert derivation.analysis.depth.regime == regime


def test_the_command_line_overrides_sets_but_thaws_nothing(tmp_path: Path) -> None:
    text = HEAD + "dense(4, constraint=fixed, bias=0.5) dense(2) }"
    chosen = ModelOptions(constraint=Constraint("frobenius", Fraction(2)), bias_bound=Fraction(3))
    graph = graph_of(tmp_path, text, chosen)
    assert {name: (str(p.constraint), p.trainable) for name, p in graph.parameters.items()} == {
        "dense.weight": ("frobenius<=2", False),
        "dense.bias": ("norm<=3", True),
        "dense_2.weight": ("frobenius<=2", True),
    }
    with pytest.raises(InputError, match="needs imported weights"):
        load(write(tmp_path, text), ModelOptions(constraint="keep"))


@pytest.mark.parametrize(
    ("text", "line", "column", "help_line"),
    [
        ("model m {\n  input x: tensor[4]\n  dense(3\n  relu\n}", 4, 3, "expected `)` or `,`"),
        ("modle m { }", 1, 1, "did you mean `model`?"),
        ("model m { input x: tensor[4]", 1, 29, None),
        ("model m { dense(3) @ }", 1, 20, ""),
        ("model m { input x: tensor[4], norm ≤ 3 }", 1, 36, "write <="),
        ("model m { input x: tensor[4], norm < 3 }", 1, 36, "write <="),
        ("model m { dense(\u00a03) }", 1, 17, "write an ordinary space"),
        ("model m { dense(3, constraint=“keep”) }", 1, 31, 'a text stands in "straight quotes", a word in none'),
        ("model m { densé(3) }", 1, 15, "names have the letters A to Z, digits and _"),
        ("model m {\n  // a comment\n}", 2, 3, "a comment begins with #"),
        ("model m {\n  inptu x: tensor[4]\n}", 2, 10, "did you mean `input`?"),
        ("model m { dense(3)\ntrain { }", 2, 7, "`train` stands outside of models: is a `}` missing before it?"),
    ],
)
def test_syntax_errors_name_the_place(
    tmp_path: Path, text: str, line: int, column: int, help_line: str | None
) -> None:
    with pytest.raises(InputError) as caught:
        load(write(tmp_path, text), ModelOptions())
    (found,) = caught.value.diagnostics
    assert found.location is not None
    assert (found.code, found.location.line, found.location.column) == ("LIP010", line, column)
    assert help_line is None or found.help == help_line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "repeat n { relu } }", "write a number; in a model `param n: int = 3` gives one a name"),
        (HEAD + "px dense(2) }", "grammar/README.md has all"),
        (HEAD + "dense(2) } train { optimizer adam(0.1) }", "write the name: lr=…"),
    ],
)
def test_names_and_numbers_that_are_none_name_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    (found,) = problems(tmp_path, text)
    assert said in found.help


def test_a_mistake_in_the_plan_is_none_of_a_layer(tmp_path: Path) -> None:
    found = check(write(tmp_path, HEAD + "dense(2) loss hinge } train { optimizer adamw(lr=1) }"))
    assert not found.ok
    assert "problem" not in found.requirements.lipschitz_layers.detail


def test_setting_an_undeclared_parameter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no parameter `depht`"):
        load(write(tmp_path, HEAD + "dense(2) }"), ModelOptions(bindings={"depht": Fraction(2)}))


def test_a_binary_file_is_not_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.lip"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="not a text file"):
        load(str(path), ModelOptions())


def test_a_slice_may_begin_with_the_first_entry_of_the_first_axis(tmp_path: Path) -> None:
    assert graph_of(tmp_path, HEAD + "slice(axis=0, start=0, stop=3) }").nodes[0].shape == (3,)
    (found,) = problems(tmp_path, HEAD + "slice(axis=0, start=-1, stop=3) }")
    assert found.code == "LIP102"


def test_a_bound_of_biases_that_do_not_exist_is_refused(tmp_path: Path) -> None:
    without, chosen = check(write(tmp_path, HEAD + "dense(2) }"), ModelOptions(bias_bound=Fraction(1))), "LIP306"
    assert [found.code for found in without.diagnostics if found.severity == "error"] == [chosen]
    for body in ("dense(2, bias=0.5)", "bias(0.5)", "repeat depth { dense(4, bias=0.5) }"):
        text = HEAD.replace("{", "{ param depth: int;", 1) + body + " }"
        assert check(write(tmp_path, text), ModelOptions(bias_bound=Fraction(1))).ok
