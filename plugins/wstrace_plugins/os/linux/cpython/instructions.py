"""The instructions of CPython's bytecode, as a running program has them: how long each is, and what it is a form of.

A running program's bytecode has specialized forms of its instructions, and instrumented ones. Behind many stand units
in which the interpreter keeps what it learned. The numbers are those of Lib/opcode.py and Include/opcode_ids.h, the
same in all releases of a minor version (a test asks the CPythons that are installed).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: by version: instruction -> units behind it, and its other forms
_FORMS: dict[tuple[int, int], dict[int, tuple[int, tuple[int, ...]]]] = {
    (3, 11): {
        25: (4, (17, 18, 19, 20, 21)),  # BINARY_SUBSCR
        60: (1, (168, 169, 170)),  # STORE_SUBSCR
        92: (1, (177, 178, 179, 180)),  # UNPACK_SEQUENCE
        95: (4, (153, 154, 158, 159)),  # STORE_ATTR
        100: (0, (44,)),  # LOAD_CONST
        106: (4, (39, 40, 41, 42, 43)),  # LOAD_ATTR
        107: (2, (26, 27, 28, 29)),  # COMPARE_OP
        116: (5, (47, 48, 55)),  # LOAD_GLOBAL
        122: (1, (3, 4, 5, 6, 7, 8, 13, 14, 16)),  # BINARY_OP
        124: (0, (45, 46)),  # LOAD_FAST
        125: (0, (161, 167)),  # STORE_FAST
        140: (0, (38,)),  # JUMP_BACKWARD
        144: (0, (34,)),  # EXTENDED_ARG
        151: (0, (150,)),  # RESUME
        160: (10, (56, 57, 58, 59, 62, 63)),  # LOAD_METHOD
        166: (1, (64, 65, 66, 67, 72, 73, 76, 77, 78, 79, 80, 81, 113, 121, 127, 141, 143)),  # PRECALL
        171: (4, (22, 23, 24)),  # CALL
    },
    (3, 12): {
        25: (1, (19, 20, 21, 22)),  # BINARY_SUBSCR
        60: (1, (159, 160)),  # STORE_SUBSCR
        92: (1, (161, 166, 167)),  # UNPACK_SEQUENCE
        93: (1, (62, 63, 64, 65, 248)),  # FOR_ITER
        95: (4, (113, 148, 153)),  # STORE_ATTR
        100: (0, (84,)),  # LOAD_CONST
        106: (9, (70, 72, 73, 76, 77, 78, 79, 80, 81, 82)),  # LOAD_ATTR
        107: (1, (57, 58, 59)),  # COMPARE_OP
        116: (4, (111, 112)),  # LOAD_GLOBAL
        122: (1, (6, 7, 8, 10, 13, 14, 16, 18)),  # BINARY_OP
        123: (1, (168,)),  # SEND
        124: (0, (86, 88)),  # LOAD_FAST
        125: (0, (154, 158)),  # STORE_FAST
        141: (1, (66, 67, 237)),  # LOAD_SUPER_ATTR
        142: (0, (244,)),  # CALL_FUNCTION_EX
        151: (0, (240,)),  # RESUME
        171: (3, (23, 24, 28, 29, 34, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 56, 241)),  # CALL
    },
    (3, 13): {
        5: (1, (157, 158, 159, 160, 161)),  # BINARY_SUBSCR
        39: (1, (212, 213)),  # STORE_SUBSCR
        40: (3, (214, 215, 216, 217, 218, 219)),  # TO_BOOL
        45: (1, (3, 150, 151, 152, 153, 154, 155, 156)),  # BINARY_OP
        53: (3, (*range(162, 182), 244)),  # CALL
        54: (0, (246,)),  # CALL_FUNCTION_EX
        57: (0, (245,)),  # CALL_KW
        58: (1, (182, 183, 184)),  # COMPARE_OP
        59: (1, (185, 186)),  # CONTAINS_OP
        72: (1, (187, 188, 189, 190, 243)),  # FOR_ITER
        77: (1, (249,)),  # JUMP_BACKWARD
        82: (9, tuple(range(191, 203))),  # LOAD_ATTR
        91: (4, (203, 204)),  # LOAD_GLOBAL
        93: (1, (205, 206, 242)),  # LOAD_SUPER_ATTR
        97: (1, (251,)),  # POP_JUMP_IF_FALSE
        98: (1, (252,)),  # POP_JUMP_IF_NONE
        99: (1, (253,)),  # POP_JUMP_IF_NOT_NONE
        100: (1, (250,)),  # POP_JUMP_IF_TRUE
        104: (1, (208,)),  # SEND
        108: (4, (209, 210, 211)),  # STORE_ATTR
        117: (1, (220, 221, 222)),  # UNPACK_SEQUENCE
        149: (0, (207, 236)),  # RESUME
    },
    (3, 14): {
        38: (1, (201, 202)),  # STORE_SUBSCR
        39: (3, tuple(range(203, 209))),  # TO_BOOL
        44: (5, (3, *range(129, 143))),  # BINARY_OP
        52: (3, (*range(143, 151), *range(154, 166), 250)),  # CALL
        55: (3, (151, 152, 153, 251)),  # CALL_KW
        56: (1, (166, 167, 168)),  # COMPARE_OP
        57: (1, (169, 170)),  # CONTAINS_OP
        70: (1, (171, 172, 173, 174, 237)),  # FOR_ITER
        75: (1, (175, 176, 253)),  # JUMP_BACKWARD
        80: (9, tuple(range(177, 190))),  # LOAD_ATTR
        82: (0, (190, 191)),  # LOAD_CONST
        92: (4, (192, 193)),  # LOAD_GLOBAL
        96: (1, (194, 195, 249)),  # LOAD_SUPER_ATTR
        100: (1, (242,)),  # POP_JUMP_IF_FALSE
        101: (1, (243,)),  # POP_JUMP_IF_NONE
        102: (1, (244,)),  # POP_JUMP_IF_NOT_NONE
        103: (1, (241,)),  # POP_JUMP_IF_TRUE
        106: (1, (197,)),  # SEND
        110: (4, (198, 199, 200)),  # STORE_ATTR
        119: (1, (209, 210, 211)),  # UNPACK_SEQUENCE
        128: (0, (196, 245)),  # RESUME
    },
}
#: instructions that stand in another's place, which cannot be read from the bytecode
_HIDING = {(3, 11): (), (3, 12): (253, 254), (3, 13): (70, 247, 254), (3, 14): (238, 254, 255)}
#: what one does for the other: 3.11's PRECALL calls, and skips the CALL behind it
_SAME = {(3, 11): {166: 171}}
#: what no instruction is
UNKNOWN = 0


class Instructions:
    """The instructions of one version.

    plain: for each number the instruction that it is a form of, u8; UNKNOWN for one that stands in another's place.
    """

    def __init__(self, version: tuple[int, int]) -> None:
        self.plain: NDArray[np.uint8] = np.arange(256).astype("u1")
        self._behind = [0] * 256
        for instruction, (units, forms) in _FORMS[version].items():
            told = _SAME.get(version, {}).get(instruction, instruction)
            for form in (instruction, *forms):
                self.plain[form] = told
                self._behind[form] = units
        self._hiding = np.array(_HIDING[version], "u1")
        self.plain[self._hiding] = UNKNOWN

    @classmethod
    def of(cls, version: tuple[int, int]) -> Instructions | None:
        """Those of a version, None where they are not known."""
        return cls(version) if version in _FORMS else None

    def by_unit(self, bytecode: bytes) -> NDArray[np.uint8]:
        """The plain instruction of which each unit is a part; UNKNOWN everywhere where one of them is not known."""
        found = np.frombuffer(bytecode[: len(bytecode) & ~1], "u1")[::2]
        begins, at, behind, numbers = [], 0, self._behind, found.tolist()
        while at < len(numbers):
            begins.append(at)
            at += 1 + behind[numbers[at]]
        here = found[begins]
        if np.isin(here, self._hiding).any():
            return np.zeros(len(found), "u1")
        return np.repeat(self.plain[here], np.diff([*begins, len(found)]))
