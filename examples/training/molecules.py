"""Molecules of the training set, with names and SMILES, and their mixtures.

Small organic molecules of H, C, N, O and S, capped amino acids and short peptides, as they occur in
simulations of peptides in water. All are neutral.
"""

from __future__ import annotations


def words(text: str) -> list[str]:
    """Parse words between white space."""
    return text.split()


def pairs(text: str) -> dict[str, str]:
    """Parse alternating names and SMILES."""
    parts = words(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _mixtures(text: str) -> list[list[str]]:
    """Parse names joined by plus signs."""
    return [word.split("+") for word in words(text)]


MD17 = pairs("""
    aspirin CC(=O)Oc1ccccc1C(=O)O  ethanol CCO  malonaldehyde C(/C=O)=C/O
    naphthalene c1ccc2ccccc2c1
    salicylic_acid OC(=O)c1ccccc1O  toluene Cc1ccccc1  benzene c1ccccc1  uracil O=c1cc[nH]c(=O)[nH]1
    paracetamol CC(=O)Nc1ccc(O)cc1  azobenzene c1ccc(/N=N/c2ccccc2)cc1
""")

SIDE_CHAINS = pairs("""
    ala C  val C(C)C  leu CC(C)C  ile [C@@H](C)CC  ser CO  thr [C@@H](C)O  asn CC(N)=O  asp CC(=O)O
    gln CCC(N)=O  glu CCC(=O)O  lys CCCCN  arg CCCNC(N)=N  his Cc1c[nH]cn1  phe Cc1ccccc1
    tyr Cc1ccc(O)cc1  trp Cc1c[nH]c2ccccc12  cys CS  met CCSC
""")
# Each amino acid has an acetyl and an N-methyl cap.
RESIDUES = {
    "ac-gly-nme": "CC(=O)NCC(=O)NC",
    "ac-pro-nme": "CC(=O)N1CCC[C@H]1C(=O)NC",
    **{f"ac-{name}-nme": f"CC(=O)N[C@@H]({r})C(=O)NC" for name, r in SIDE_CHAINS.items()},
}

CHAINS = pairs("""
    ac-ala2-nme CC(=O)N[C@@H](C)C(=O)N[C@@H](C)C(=O)NC
    ac-gly-ala-nme CC(=O)NCC(=O)N[C@@H](C)C(=O)NC
    ac-gly2-nme CC(=O)NCC(=O)NCC(=O)NC
    ac-ala3-nhme CC(=O)N[C@@H](C)C(=O)N[C@@H](C)C(=O)N[C@@H](C)C(=O)NC
""")

FRAGMENTS = pairs("""
    hydrogen [H][H]  methane C  ethane CC  propane CCC  butane CCCC  isobutane CC(C)C  hexane CCCCCC
    neopentane CC(C)(C)C  ethylene C=C  propene CC=C  butadiene C=CC=C  allene C=C=C  acetylene C#C
    propyne CC#C  cyclopropane C1CC1  cyclobutane C1CCC1  cyclopentane C1CCCC1  cyclohexane C1CCCCC1
    cyclohexene C1CCC=CC1  styrene C=Cc1ccccc1  methanol CO  propanol CCCO  isopropanol CC(C)O
    glycol OCCO  glycerol OCC(O)CO  dimethyl_ether COC  diethyl_ether CCOCC  dimethoxyethane COCCOC
    thf C1CCOC1  dioxane C1COCCO1  oxirane C1CO1  formaldehyde C=O  acetaldehyde CC=O
    acetone CC(C)=O  malonaldehyde_e O=C/C=C/O  propanedial O=CCC=O  acrolein C=CC=O
    cyclohexanone O=C1CCCCC1  benzaldehyde O=Cc1ccccc1
    ketene C=C=O  vinyl_alcohol C=CO  formic_acid OC=O  acetic_acid CC(=O)O  propionic_acid CCC(=O)O
    oxalic_acid OC(=O)C(=O)O  lactic_acid C[C@H](O)C(=O)O  benzoic_acid OC(=O)c1ccccc1
    glycine NCC(=O)O  alanine N[C@@H](C)C(=O)O  methyl_formate COC=O  methyl_acetate COC(C)=O
    acetic_anhydride CC(=O)OC(C)=O  carbonic_acid OC(=O)O  formamide NC=O  acetamide CC(N)=O
    nmf CNC=O  dmf CN(C)C=O  nma CC(=O)NC  dma CC(=O)N(C)C  pyrrolidone O=C1CCCN1
    acrylamide C=CC(N)=O  urea NC(N)=O  methylurea CNC(N)=O  methyl_carbamate COC(N)=O
    guanidine NC(N)=N  methylguanidine CNC(N)=N  acetamidine CC(N)=N  ammonia N  methylamine CN
    dimethylamine CNC  trimethylamine CN(C)C  ethylamine CCN  butylamine CCCCN  ethanolamine NCCO
    piperidine C1CCNCC1  morpholine C1COCCN1  piperazine C1CNCCN1  hydrazine NN  hydroxylamine NO
    hydrogen_peroxide OO  methanimine C=N  acetoxime CC(C)=NO  hydrogen_cyanide C#N
    acetonitrile CC#N  benzonitrile N#Cc1ccccc1  nitromethane C[N+](=O)[O-]
    nitrobenzene O=[N+]([O-])c1ccccc1  carbon_monoxide [C-]#[O+]  carbon_dioxide O=C=O  nitrogen N#N
    phenol Oc1ccccc1  cresol Cc1ccc(O)cc1  anisole COc1ccccc1  aniline Nc1ccccc1
    catechol Oc1ccccc1O  pyridine c1ccncc1  pyrimidine c1cncnc1  pyrazine c1cnccn1
    pyrrole c1cc[nH]c1  furan c1ccoc1  imidazole c1c[nH]cn1  methylimidazole Cc1c[nH]cn1
    pyrazole c1cn[nH]c1  oxazole c1cocn1  triazole c1c[nH]nn1  indole c1ccc2[nH]ccc2c1
    cytosine Nc1cc[nH]c(=O)n1
    thymine Cc1c[nH]c(=O)[nH]c1=O  adenine Nc1ncnc2[nH]cnc12  hypoxanthine O=c1[nH]cnc2nc[nH]c12
    nicotinamide NC(=O)c1cccnc1  benzamide NC(=O)c1ccccc1  phenethylamine NCCc1ccccc1
    succinimide O=C1CCC(=O)N1  glyceraldehyde OC[C@@H](O)C=O
    glucose OC[C@H]1O[C@@H](O)[C@H](O)[C@@H](O)[C@@H]1O  methanethiol CS  dimethyl_sulfide CSC
    ethanethiol CCS  hydrogen_sulfide S  dimethyl_disulfide CSSC  thiophene c1ccsc1
""")

# Solutes, and the numbers of waters around them.
HYDRATED = {
    "nma": (1, 2, 3, 6),
    "ac-ala-nme": (1, 2, 4, 6, 8),
    "ac-gly-nme": (2, 4),
    "ac-ser-nme": (2,),
    "methanol": (1, 2, 4),
    "ethanol": (3,),
    "acetamide": (1, 2, 4),
    "formamide": (3,),
    "acetic_acid": (1, 3),
    "acetone": (2,),
    "methylamine": (1, 3),
    "ammonia": (2, 4),
    "imidazole": (2, 4),
    "phenol": (1, 3),
    "benzene": (1, 3),
    "methane": (4,),
    "urea": (4,),
    "methylguanidine": (3,),
    "glycine": (4,),
    "indole": (2,),
    "pyridine": (2,),
    "methanethiol": (2,),
    "dimethyl_sulfide": (2,),
}

COMPLEXES = _mixtures("""
    methanol+methanol  methanol+methanol+methanol  ammonia+ammonia  nma+nma  nma+methanol
    benzene+benzene  benzene+methane  methane+methane  ethane+propane  imidazole+formic_acid
    phenol+nma  acetamide+acetic_acid  benzene+nma  indole+methane  methylamine+methanol
    pyridine+phenol  uracil+adenine  cytosine+formamide  acetone+acetonitrile  urea+urea
    acetamide+acetamide+acetamide  butane+butane  methanethiol+nma  guanidine+acetic_acid
""")

# Excluded from training, to measure errors on unseen molecules.
HELD_OUT = {
    "paracetamol", "azobenzene", "ac-val-nme", "ac-ala2-nme", "nicotinamide", "morpholine",
    "acetoxime", "phenethylamine", "ac-gly-nme+4w", "uracil+adenine",
}  # fmt: skip
