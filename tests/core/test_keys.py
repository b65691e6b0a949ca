from longhaul.core.schedules import derive_key


def test_a_key_is_the_same_on_every_machine() -> None:
    assert derive_key(1337, "order", "stdlib", 0) == 7_149_704_084_732_451_578


def test_keys_of_different_purposes_differ_even_when_their_words_run_together() -> None:
    assert derive_key(1, "ab", "c") != derive_key(1, "a", "bc")
    assert len({derive_key(seed, "a", n) for seed in range(50) for n in range(50)}) == 2500
