"""The list of molecules of `examples/training`: distinct, of closed shells, split by scaffold."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("rdkit", reason="needs RDKit: pip install mlff-triton[train]")


@pytest.fixture(scope="module")
def molecules():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "examples" / "training"))
        import compounds

        yield compounds.compounds()


def test_molecules_are_many_distinct_and_of_all_families(molecules):
    assert len(molecules) > 15_000
    assert len({each.smiles for each in molecules}) == len(molecules)
    assert len({each.name for each in molecules}) == len(molecules)
    families = Counter(each.family for each in molecules)
    assert (families["held_out"], families["torsion"]) == (32, 10)
    assert min(families[name] for name in ("dipeptide", "nucleoside", "zwitterion", "ion")) > 50
    assert {-2, -1, 0, 1, 2} <= {each.charge for each in molecules}


def test_molecules_are_of_closed_shells_and_known_elements(molecules):
    from rdkit import Chem

    seen = set()
    for each in islice(molecules, 0, None, 7):
        mol = Chem.AddHs(Chem.MolFromSmiles(each.smiles))
        numbers = [atom.GetAtomicNum() for atom in mol.GetAtoms()]
        assert (sum(numbers) - each.charge) % 2 == 0
        assert Chem.GetFormalCharge(mol) == each.charge
        assert not any(atom.GetNumRadicalElectrons() for atom in mol.GetAtoms())
        seen.update(numbers)
    assert seen == {1, 5, 6, 7, 8, 9, 14, 15, 16, 17, 35, 53}


def test_splits_share_no_scaffold(molecules):
    splits = defaultdict(set)
    for each in molecules:
        if each.family in ("held_out", "torsion"):
            assert each.split == "test"
        elif each.scaffold:
            splits[each.scaffold].add(each.split)
        else:
            assert each.split == "train"
    assert {len(found) for found in splits.values()} == {1}
    shares = Counter(each.split for each in molecules)
    assert all(shares[name] > 0.02 * len(molecules) for name in ("valid", "test"))


def test_the_list_depends_on_no_order_of_combinations(training_modules, monkeypatch):
    compounds = training_modules("compounds")
    chains = list(islice(compounds.filled(compounds.SPACERS, compounds.GROUPS, ["F", "O"]), 300))
    lists = []
    for combined in (chains, chains[::-1]):
        monkeypatch.setattr(compounds, "families", lambda given=combined: [("chain", 40, given)])
        lists.append(compounds.compounds())
    assert lists[0] == lists[1]
    assert sum(each.family == "chain" for each in lists[0]) == 40


@pytest.mark.parametrize("smiles", ["[CH3]", "O=[N]", "[O][O]", "[Na+]", "C.C", "C(C)(C)(C)(C)C"])
def test_open_shells_and_nonsense_are_left_out(smiles, training_modules):
    assert training_modules("compounds").parsed(smiles, "fragment") is None
