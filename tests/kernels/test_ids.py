"""Declarations of work-items' ids."""

from keras_ocl.kernels.ids import Fold, Ids

PLACES = [("local", 0), ("global", 0), ("group", 1)]


def test_ids_are_what_the_launch_gives():
    text = "const size_t global_0 = get_global_id(0);\nconst size_t group_1 = get_group_id(1);\nconst size_t local_0 = get_local_id(0);\n"
    assert Ids().plain and Ids().declarations(PLACES) == text
    assert Ids().declarations([]) == ""


def test_a_function_has_ids_as_parameters_and_computes_others():
    text = "const size_t global_0 = group_0 * 8 + get_local_id(0);\nconst size_t local_0 = get_local_id(0);\n"
    assert Ids().declarations(PLACES, {("group", 1): "", ("global", 0): "group_0 * 8 + get_local_id(0)"}) == text


def test_a_launch_of_several_begins_later():
    ids = Ids().beginning(0, "n3", 64)
    assert not ids.plain
    assert ids.declarations([("global", 0)]) == "const size_t global_0 = get_global_id(0) + n3 * 64;\n"
    assert ids.declarations([("group", 0)]) == "const size_t group_0 = get_group_id(0) + n3;\n"
    assert ids.declarations([("local", 0), ("group", 1)]) == Ids().declarations([("local", 0), ("group", 1)])


def test_groups_of_a_folded_grid():
    folded = Ids(fold=Fold("int", "{0} + (int)({1}) * 7", ("n1", "n2"), (8, 1, 1)))
    assert not folded.plain
    assert folded.declarations([("global", 0)]) == (
        "const int launch = get_group_id(0) + (int)(get_group_id(1)) * 7;\n"
        "const size_t group_2 = launch / n1 / n2;\nconst size_t group_1 = launch / n1 % n2;\nconst size_t group_0 = launch % n1;\n"
        "const size_t global_0 = group_0 * 8 + get_local_id(0);\n"
    )
    assert "(int)(get_group_id(1) + n3) * 7;\n" in folded.beginning(1, "n3", 1).declarations([])
