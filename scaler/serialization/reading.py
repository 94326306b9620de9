"""Detects functions that only read a global list or dict, as in `table[key]`, which then needs no comparison.

Unclear uses count as changes.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

READING_FUNCTIONS = frozenset({"len", "sum", "min", "max", "sorted", "set", "frozenset", "tuple", "list"})
"""Built-in functions whose results give no access to a container of atoms."""
_READING_METHODS = frozenset({"get", "keys", "values", "items", "index", "count", "copy"})
_READ_ON_TOP = frozenset({"GET_ITER", "UNARY_NOT", "CONTAINS_OP", "TO_BOOL"})
_LOAD_ATTR_HAS_FLAG = sys.version_info >= (3, 12)  # lowest bit: loads a method for a call
_LOADS = """LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_CONST
    LOAD_SMALL_INT LOAD_GLOBAL LOAD_DEREF PUSH_NULL KW_NAMES NOP RESUME"""
_POPS = dict.fromkeys(_LOADS.split(), 0)
_POPS |= dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "UNARY_NEGATIVE", "UNARY_NOT", "UNARY_INVERT"), 1)
_POPS |= dict.fromkeys(("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "IS_OP", "CONTAINS_OP"), 2)
_POPS_BY_ARGUMENT = {"BUILD_TUPLE": 0, "BUILD_STRING": 0, "CALL": 2}
"""Stack items that an instruction pops in addition to its argument."""


@lru_cache(256)
def only_reads(code: CodeType, name: str) -> bool:
    """Return whether code only reads a global list or dict of atoms. Assumes `READING_FUNCTIONS` are not overridden."""
    return all(_only_reads(each, name) for each in codes_in(code))


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def names_in(code: CodeType) -> Iterator[str]:
    for each in codes_in(code):
        yield from each.co_names


def _only_reads(code: CodeType, name: str) -> bool:
    if name not in code.co_names:
        return True
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    for position, each in enumerate(instructions):
        if each.argval != name or not ("GLOBAL" in each.opname or "NAME" in each.opname):
            continue
        if each.opname != "LOAD_GLOBAL" or not _is_read(instructions, position):
            return False
    return True


def _is_read(instructions: list[dis.Instruction], position: int) -> bool:
    """Return whether the first use of the object loaded at this position only reads it."""
    above = 0
    for each in instructions[position + 1 :]:
        name, number = each.opname, each.arg or 0
        if name == "PRECALL":  # Python 3.11; `CALL` follows
            continue
        if not above:
            if name in _READ_ON_TOP or name.startswith("POP_JUMP_"):
                return True
            if _loads_method(each):
                return each.argval in _READING_METHODS
        pops = _POPS_BY_ARGUMENT[name] + number if name in _POPS_BY_ARGUMENT else _POPS.get(name)
        if pops is None:
            return False
        if pops > above:
            if name == "CALL" and not above and number == 1:
                before = instructions[position - 1]
                return before.opname == "LOAD_GLOBAL" and before.argval in READING_FUNCTIONS
            return above == 1 and (name == "BINARY_SUBSCR" or (name == "BINARY_OP" and each.argrepr == "[]"))
        if name == "CALL":
            above -= number + 1
        else:
            above += dis.stack_effect(each.opcode, each.arg, jump=False)
    return False


def _loads_method(instruction: dis.Instruction) -> bool:
    """Return whether a method is loaded for a call. A bound method that is used as an object would expose the
    container."""
    has_flag = instruction.opname == "LOAD_ATTR" and _LOAD_ATTR_HAS_FLAG and (instruction.arg or 0) & 1
    return instruction.opname == "LOAD_METHOD" or bool(has_flag)
