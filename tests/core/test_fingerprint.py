from longhaul.core.machine import differences, environment, software


def test_a_difference_names_every_leaf_that_changed_with_both_values() -> None:
    old = {"torch": {"version": "2.12", "jit": True}, "host": "a", "gone": 1}
    new = {"torch": {"version": "2.13", "jit": True}, "host": "a", "come": [1]}
    assert differences(old, new) == {
        "torch.version": ("2.12", "2.13"),
        "gone": (1, None),
        "come": (None, [1]),
    }


def test_equal_fingerprints_do_not_differ_because_json_has_no_tuples() -> None:
    assert differences({"a": {"b": (1, 2)}}, {"a": {"b": [1, 2]}}) == {}


def test_variables_that_change_numbers_are_kept_and_secrets_are_not() -> None:
    given = {"NCCL_ALGO": "Ring", "AWS_SECRET": "x", "OMP_NUM_THREADS": "2"}
    given["TRITON_CACHE_DIR"] = "/tmp"  # a place changes nothing
    kept = environment(given)
    assert kept == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "2"}


def test_the_packages_that_decide_numbers_are_listed_with_their_versions() -> None:
    packages = software()["packages"]
    assert packages["torch"].startswith("2.")
    assert "numpy" in packages
