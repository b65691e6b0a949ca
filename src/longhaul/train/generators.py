"""Random generators of the host and of the device.

Enters: keys, or states of before. Leaves: the generators, set. Never knows: what is drawn.
"""

import torch

from longhaul.model.device import generator_state, put_back_generator, seed


def key_generators(key: int, device: torch.device) -> None:
    """Seed the host's generator and the device's, as `torch.manual_seed` would.

    That function also leaves word for accelerators that are not there, with a stack trace each
    time: 0.1 ms, at every micro-batch.
    """
    torch.default_generator.manual_seed(key)
    if device.type != "cpu":
        seed(key, device)


def generator_states(device: torch.device) -> list[torch.Tensor]:
    """The host's, and the device's if it has its own."""
    states = [torch.default_generator.get_state()]
    if device.type != "cpu":
        states.append(generator_state(device))
    return states


def put_back(states: list[torch.Tensor], device: torch.device) -> None:
    """As `generator_states` gave them."""
    torch.default_generator.set_state(states[0])
    if device.type != "cpu":
        put_back_generator(states[1], device)
