"""Building blocks of the molecules that a teacher labels, written as SMILES.

Everything here was written for this package. Templates have sites ``{0}`` and ``{1}``, and groups
and rings are bonded through their first atom. Rings of templates are numbered from 1, and those of
groups from 8, so that a group may stand inside a ring.
"""

from __future__ import annotations

from molecules import pairs, words

CORES = words("""
    c1cc({0})ccc1{1}  c1c({0})cccc1{1}  c1({0})ccccc1{1}  c1({0})cc(C)cc(Cl)c1{1}
    c1({0})cc(F)ccc1{1}  c1c({0})cc(O)cc1{1}  c1cc({0})ncc1{1}  c1c({0})nccc1{1}  c1c({0})cncc1{1}
    c1nc({0})ncc1{1}  c1c({0})ncnc1{1}  c1nc({0})cnc1{1}  c1c({0})nnc({1})c1  c1nc({0})nc({1})n1
    o1c({0})ccc1{1}  s1c({0})ccc1{1}  [nH]1c({0})ccc1{1}  [nH]1c({0})ncc1{1}  o1c({0})ncc1{1}
    s1c({0})ncc1{1}  o1nc({0})cc1{1}  s1nc({0})cc1{1}  [nH]1nc({0})cc1{1}  n1(C)nc({0})cc1{1}
    [nH]1nc({0})nc1{1}  o1nc({0})nc1{1}  o1c({0})nnc1{1}  s1c({0})nnc1{1}  s1nc({0})nc1{1}
    c1({0})ccc2[nH]cc({1})c2c1  c1({0})ccc2[nH]c({1})nc2c1  c1({0})ccc2oc({1})cc2c1
    c1({0})ccc2sc({1})cc2c1  c1({0})ccc2sc({1})nc2c1  c1({0})ccc2ncc({1})cc2c1
    c1({0})ccc2cnc({1})cc2c1  c1({0})ccc2ncnc({1})c2c1  c1({0})ccc2cc({1})ccc2c1
    c1({0})nc2[nH]cnc2c({1})n1  c1({0})cn2cc({1})nc2cc1  c1({0})cc2nn([H])cc2cc1{1}
    C1CC({0})CCC1{1}  C1C({0})CCCC1{1}  C1C({0})CCC1{1}  C1C({0})CC1{1}  C1C({0})C1{1}
    C1C({0})=CCCC1{1}  C1CNC({0})CC1{1}  N1(C)CCC({0})CC1{1}  C1C({0})NCC1{1}  C1OCC({0})NC1{1}
    C1NCC({0})NC1{1}  O1C({0})CCC1{1}  O1C({0})CCCC1{1}  O1C({0})COCC1{1}  S1C({0})CCC1{1}
    O1CC({0})C1{1}  N1CC({0})C1{1}  O1C({0})C1{1}  C1CCC({0})CCC1{1}  O=C1C({0})CCN1C{1}
    O=C1C({0})=CC(C)CC1{1}  O=C1NC(=O)C({0})N1C{1}  O=C1OCC({0})N1C{1}  O=C1C=C({0})c2ccc({1})cc2O1
    O=c1[nH]c({0})cc({1})[nH]1  O=c1cc({0})cc({1})[nH]1  C1C({0})C2CCC1C2{1}  C1C({0})c2ccccc2C1{1}
    c1({0})cc2OCOc2cc1{1}  C1C({0})CS(=O)(=O)C1{1}  S1(=O)(=O)NC({0})CC1{1}  C1({0})OCC2(CC1)CC2{1}
    C1C({0})CC2NCCC2C1{1}  B1(O)OCc2c({0})ccc({1})c12  C1C({0})C[Si](C)(C)C1{1}
    O=C1C=CC(=O)C({0})=C1{1}
""")

SPACERS = words("""
    C({0}){1}  C({0})C{1}  C({0})CC{1}  C({0})CCC{1}  C({0})C(C){1}  C({0})(C)C{1}  C({0})=C{1}
    C({0})#C{1}  C({0})C=C{1}  C({0})C#C{1}  C({0})=CC=C{1}  C({0})OC{1}  C({0})COC{1}  C({0})SC{1}
    C({0})N(C)C{1}  C({0})NCC{1}  C({0})C(=O)C{1}  C({0})C(=O)NC{1}  C({0})C(O)C{1}  C({0})(F)C{1}
    C({0})C(F)(F)C{1}  C({0})C(=O)OC{1}  C({0})[Si](C)(C)C{1}  C({0})SSC{1}  C({0})S(=O)(=O)C{1}
    C({0})OP(=O)(O)OC{1}  C({0})C(Cl)C{1}  C({0})(C)C(C){1}
""")

GROUPS = words("""
    [H] C CC C(C)C C(C)(C)C C8CC8 C=C C#C F Cl Br I C(F)(F)F C(F)F CF OC(F)(F)F O OC OCC N NC N(C)C
    NC(C)=O C(=O)O C(=O)OC C(=O)N C(=O)NC C(=O)N(C)C C(C)=O C=O C#N [N+](=O)[O-] S SC S(C)(=O)=O
    S(C)=O S(N)(=O)=O S(=O)(=O)NC S(=O)(=O)N(C)C NS(C)(=O)=O N=[N+]=[N-] CN=[N+]=[N-] CN CCN CO CCO
    CC(=O)O C(=O)OO OO P(C)C P(C)(C)=O OP(=O)(O)O P(=O)(OC)OC CS CCl CBr CI B(O)O [Si](C)(C)C N=C=O
    N=C=S C(N)=N NC(N)=N NC(N)=O NN C=NO OC(C)=O OC(N)=O OS(C)(=O)=O S(=O)(=O)O S(=O)(=O)F C(=O)Cl
    N=O C(N)=S CSC COC CC#N C(=O)NN C(=O)NO CC(N)C(=O)O SSC [SiH3] PC
""")

RINGS = words("""
    c8ccccc8 c8ccccn8 c8cccnc8 c8ccncc8 c8ncccn8 c8ccco8 c8cccs8 c8ccc[nH]8 c8cnc[nH]8 n8ccnc8
    n8cccn8 n8cncn8 c8nccs8 c8ncco8 c8nn[nH]n8 c8ccc(F)cc8 c8ccc(Cl)cc8 c8ccc(O)cc8 c8ccc(OC)cc8
    c8ccc(N)cc8 c8ccc(C#N)cc8 c8ccc(Br)cc8 C8CCCCC8 C8CCCC8 C8CC8 N8CCOCC8 N8CCCC8 N8CCCCC8 N8CCNCC8
    C8CCNCC8 C8CCOC8 c8ccc9[nH]ccc9c8 c8ccc9ncccc9c8 c8nc9ccccc9[nH]8
""")

LINKS = words("""
    - C CC /C=C/ C#C C(=O) C(=O)N NC(=O) O S N S(=O)(=O) S(=O)(=O)N NS(=O)(=O) C(=O)O OC CO NC CN SC
    CS /N=N/ /C=N/ C(=O)NC CC(=O)N NC(=O)N OC(=O)N SS OCC C(O) C(=O)/C=C/ [Si](C)(C) OP(=O)(O)O
    C(F)(F) S(=O) C(=O)NN OCO
""")

SMALL = words("[H] C F Cl Br O OC N C#N")  # groups that leave space for a link and a ring

# Charged groups, by the charge of what they replace a hydrogen with.
ANIONS = words(
    "C(=O)[O-] S(=O)(=O)[O-] [O-] [S-] OP(=O)(O)[O-] CC(=O)[O-] C(=O)N[O-] OS(=O)(=O)[O-]"
)
CATIONS = words("[NH3+] C[NH3+] C[NH+](C)C C[N+](C)(C)C C(N)=[NH2+] NC(N)=[NH2+] CC[NH3+] [PH3+]")

CHARGED_SIDE_CHAINS = pairs("""
    asp CC(=O)[O-]  glu CCC(=O)[O-]  lys CCCC[NH3+]  arg CCCNC(N)=[NH2+]  hip Cc1c[nH]c[nH+]1
    cym C[S-]  tym Cc1ccc([O-])cc1  sep COP(=O)(O)[O-]
""")

BASES = words("""
    n8cnc9c(N)ncnc98 n8cnc9c(=O)[nH]c(N)nc98 n8ccc(N)nc8=O n8ccc(=O)[nH]c8=O n8cc(C)c(=O)[nH]c8=O
    n8cnc9c(=O)[nH]cnc98 n8cc(F)c(=O)[nH]c8=O n8cc(Br)c(=O)[nH]c8=O n8cc(I)c(=O)[nH]c8=O
    n8ccc(NC)nc8=O n8cnc9c(NC)ncnc98 n8cnc9c(Cl)ncnc98 n8cnc9c(S)ncnc98 n8cc(C)c(N)nc8=O
""")
SUGARS = words("""
    [H] C CC CO COC [C@@H]1O[C@H](CO)[C@@H](O)[C@H]1O [C@@H]1O[C@H](CO)[C@@H](O)C1
    [C@@H]1O[C@H](COP(=O)(O)O)[C@@H](O)C1 C1OCCC1 CC(=O)O CCOCCO [C@@H]1O[C@H](CO)C=C1
    [C@@H]1O[C@H](CO)[C@@H](O)[C@@H]1O [C@@H]1O[C@H](CO)[C@@H](F)C1
""")

CARBOHYDRATES = pairs("""
    glycolaldehyde OCC=O  dihydroxyacetone OCC(=O)CO  erythrose OCC(O)C(O)C=O
    ribose OC[C@H]1OC(O)[C@H](O)[C@@H]1O  deoxyribose OC[C@H]1OC(O)C[C@@H]1O
    xylose O[C@@H]1COC(O)[C@H](O)[C@H]1O  galactose OC[C@H]1OC(O)[C@H](O)[C@@H](O)[C@H]1O
    mannose OC[C@H]1OC(O)[C@@H](O)[C@@H](O)[C@@H]1O  fructose OC[C@H]1OC(O)(CO)[C@@H](O)[C@@H]1O
    fucose C[C@@H]1OC(O)[C@@H](O)[C@H](O)[C@@H]1O
    glucosamine OC[C@H]1OC(O)[C@H](N)[C@@H](O)[C@@H]1O
    methyl_glucoside OC[C@H]1OC(OC)[C@H](O)[C@@H](O)[C@@H]1O  erythritol OCC(O)C(O)CO
    glucuronic_acid OC(=O)[C@H]1OC(O)[C@H](O)[C@@H](O)[C@@H]1O  xylitol OCC(O)C(O)C(O)CO
    inositol OC1C(O)C(O)C(O)C(O)C1O  acetylglucosamine OC[C@H]1OC(O)[C@H](NC(C)=O)[C@@H](O)[C@@H]1O
""")

INORGANICS = pairs("""
    water O  hydrogen_fluoride F  hydrogen_chloride Cl  hydrogen_bromide Br  hydrogen_iodide I
    fluorine FF  chlorine ClCl  bromine BrBr  iodine II  chlorine_fluoride ClF  iodine_chloride ICl
    phosphine P  silane [SiH4]  disilane [SiH3][SiH3]  borane [BH3]  ammonia_borane [NH3+][BH3-]
    boric_acid OB(O)O  boron_trifluoride FB(F)F  boron_trichloride ClB(Cl)Cl
    silicic_acid O[Si](O)(O)O  silicon_tetrafluoride F[Si](F)(F)F
    silicon_tetrachloride Cl[Si](Cl)(Cl)Cl  disiloxane [SiH3]O[SiH3]  sulfur_dioxide O=S=O
    sulfur_trioxide O=S(=O)=O  sulfuric_acid OS(O)(=O)=O  sulfurous_acid OS(O)=O
    carbonyl_sulfide O=C=S  carbon_disulfide S=C=S  nitrous_oxide N#[N+][O-]
    nitric_acid O[N+](=O)[O-]  nitrous_acid ON=O  nitrosyl_chloride ClN=O
    dinitrogen_tetroxide O=[N+]([O-])[N+](=O)[O-]  hydrazoic_acid N=[N+]=[N-]  isocyanic_acid N=C=O
    cyanic_acid OC#N  thiocyanic_acid SC#N  isothiocyanic_acid N=C=S  cyanogen N#CC#N
    cyanogen_chloride ClC#N  cyanogen_bromide BrC#N  hypochlorous_acid OCl  hypobromous_acid OBr
    dichlorine_oxide ClOCl  oxygen_difluoride FOF  perchloric_acid OCl(=O)(=O)=O
    chloric_acid OCl(=O)=O  phosphoric_acid OP(O)(O)=O  phosphorous_acid OP(O)O
    pyrophosphoric_acid OP(O)(=O)OP(O)(O)=O  phosphorus_trichloride ClP(Cl)Cl
    phosphorus_trifluoride FP(F)F  phosphoryl_chloride ClP(Cl)(Cl)=O
    phosphorus_pentafluoride FP(F)(F)(F)F  nitrogen_trifluoride FN(F)F  chloramine NCl  diimide N=N
    hydrogen_disulfide SS  sulfuryl_chloride ClS(Cl)(=O)=O  thionyl_chloride ClS(Cl)=O
    sulfur_hexafluoride FS(F)(F)(F)(F)F  sulfur_tetrafluoride FS(F)(F)F  phosgene O=C(Cl)Cl
    diphosphine PP  sulfamide NS(N)(=O)=O  borazine B1NBNBN1  ozone [O-][O+]=O
    hydrogen_trioxide OOO  sulfur_dichloride ClSCl  disulfur_dichloride ClSSCl
    trisilylamine [SiH3]N([SiH3])[SiH3]
""")

SOLVENTS = pairs("""
    dmso CS(C)=O  chloroform ClC(Cl)Cl  dichloromethane ClCCl  carbon_tetrachloride ClC(Cl)(Cl)Cl
    trifluoroethanol OCC(F)(F)F  trifluoroacetic_acid OC(=O)C(F)(F)F  ethyl_acetate CCOC(C)=O
    sulfolane O=S1(=O)CCCC1  hmpa CN(C)P(=O)(N(C)C)N(C)C  nmp CN1CCCC1=O  butanone CCC(C)=O
    dichloroethane ClCCCl  chlorobenzene Clc1ccccc1  fluorobenzene Fc1ccccc1  xylene Cc1ccc(C)cc1
    propylene_carbonate CC1COC(=O)O1  dimethyl_carbonate COC(=O)OC  tert_butanol CC(C)(C)O
    triethylamine CCN(CC)CC  heptane CCCCCCC  methyl_tert_butyl_ether COC(C)(C)C
    tetramethylsilane C[Si](C)(C)C  hexafluorobenzene Fc1c(F)c(F)c(F)c(F)c1F  iodomethane CI
    bromomethane CBr  fluoromethane CF  chloromethane CCl  tetrafluoromethane FC(F)(F)F
    fluoroform FC(F)F  butanol CCCCO  trimethyl_phosphate COP(=O)(OC)OC  methyl_azide CN=[N+]=[N-]
    peracetic_acid CC(=O)OO  performic_acid O=COO  methyl_hydroperoxide COO
    dimethyl_sulfone CS(C)(=O)=O  methyl_nitrate CO[N+](=O)[O-]  pyridone O=c1cccc[nH]1
    aminopyridine Nc1ccccn1
""")

IONS = pairs("""
    hydronium [OH3+]  hydroxide [OH-]  ammonium [NH4+]  fluoride [F-]  chloride [Cl-]  bromide [Br-]
    iodide [I-]  cyanide [C-]#N  azide [N-]=[N+]=[N-]  nitrate [O-][N+](=O)[O-]  nitrite [O-]N=O
    bicarbonate OC(=O)[O-]  formate [O-]C=O  acetate CC(=O)[O-]  bisulfate OS(=O)(=O)[O-]
    dihydrogen_phosphate OP(O)(=O)[O-]  hydrogen_phosphate OP(=O)([O-])[O-]  hydrosulfide [SH-]
    sulfonium [SH3+]  phosphonium [PH4+]  methylammonium C[NH3+]  dimethylammonium C[NH2+]C
    trimethylammonium C[NH+](C)C  tetramethylammonium C[N+](C)(C)C  guanidinium NC(N)=[NH2+]
    imidazolium c1c[nH]c[nH+]1  pyridinium c1cc[nH+]cc1  methoxide C[O-]  phenolate [O-]c1ccccc1
    methanethiolate C[S-]  acetylide [C-]#C  cyanate [O-]C#N  thiocyanate [S-]C#N
    hydroperoxide_ion O[O-]  hypochlorite [O-]Cl  perchlorate [O-]Cl(=O)(=O)=O
    tetrafluoroborate F[B-](F)(F)F  borohydride [BH4-]  hexafluorophosphate F[P-](F)(F)(F)(F)F
    triflate [O-]S(=O)(=O)C(F)(F)F  bifluoride F[H-]F  trifluoroacetate [O-]C(=O)C(F)(F)F
    methanesulfonate CS(=O)(=O)[O-]  benzoate [O-]C(=O)c1ccccc1  methyloxonium C[OH2+]
    nitronium O=[N+]=O  nitrosonium N#[O+]  hydrazinium N[NH3+]  anilinium [NH3+]c1ccccc1
    acetamidinium CC(N)=[NH2+]  pyrrolidinium C1CC[NH2+]C1  methylimidazolium C[n+]1cc[nH]c1
    dicyanamide N#C[N-]C#N  triiodide I[I-]I  formamidinium NC=[NH2+]  trimethylsulfonium C[S+](C)C
    tetramethylphosphonium C[P+](C)(C)C  carbonate [O-]C(=O)[O-]  sulfate [O-]S(=O)(=O)[O-]
""")

# Named molecules that are tested and never trained on.
HELD_OUT = pairs("""
    ibuprofen CC(C)Cc1ccc(cc1)C(C)C(=O)O  naproxen COc1ccc2cc(ccc2c1)C(C)C(=O)O
    caffeine Cn1cnc2c1c(=O)n(C)c(=O)n2C  nicotine CN1CCCC1c1cccnc1  aspirin CC(=O)Oc1ccccc1C(=O)O
    lidocaine CCN(CC)CC(=O)Nc1c(C)cccc1C  benzocaine CCOC(=O)c1ccc(N)cc1
    paracetamol CC(=O)Nc1ccc(O)cc1  sulfanilamide Nc1ccc(cc1)S(N)(=O)=O
    benzyl_azide [N-]=[N+]=NCc1ccccc1  mcpba OOC(=O)c1cccc(Cl)c1  metformin CN(C)C(=N)NC(N)=N
    isoniazid NNC(=O)c1ccncc1  metronidazole Cc1ncc([N+](=O)[O-])n1CCO
    fluorouracil O=c1[nH]cc(F)c(=O)[nH]1  diazepam CN1C(=O)CN=C(c2ccccc2)c2cc(Cl)ccc21
    phenobarbital CCC1(c2ccccc2)C(=O)NC(=O)NC1=O  phenytoin O=C1NC(=O)C(c2ccccc2)(c2ccccc2)N1
    dopamine NCCc1ccc(O)c(O)c1  serotonin NCCc1c[nH]c2ccc(O)cc12  ketamine CNC1(CCCCC1=O)c1ccccc1Cl
    salbutamol CC(C)(C)NCC(O)c1ccc(O)c(CO)c1  saccharin O=C1NS(=O)(=O)c2ccccc12
    sulfamethoxazole Cc1cc(NS(=O)(=O)c2ccc(N)cc2)no1  captopril CC(CS)C(=O)N1CCCC1C(=O)O
    triethyl_phosphate CCOP(=O)(OCC)OCC  triclosan Oc1cc(Cl)ccc1Oc1ccc(Cl)cc1Cl
    menthol CC(C)C1CCC(C)CC1O  camphor CC1(C)C2CCC1(C)C(=O)C2  vanillin COc1cc(C=O)ccc1O
    ascorbic_acid OCC(O)C1OC(=O)C(O)=C1O  biotin OC(=O)CCCCC1SCC2NC(=O)NC12
""")
TORSIONS = pairs("""
    butane CCCC  biphenyl c1ccc(-c2ccccc2)cc1  butadiene C=CC=C  methyl_vinyl_ether COC=C
    methylacetamide CC(=O)NC  ethylbenzene CCc1ccccc1  phenylpyridine c1ccc(-c2ccccn2)cc1
    formanilide O=CNc1ccccc1  methylmethanesulfonamide CNS(C)(=O)=O
    alanine_dipeptide CC(=O)N[C@@H](C)C(=O)NC
""")

# Dimers of S22, never trained on as pairs: P. Jurečka, J. Šponer, J. Černý and P. Hobza,
# Phys. Chem. Chem. Phys. 2006, 8, 1985, https://doi.org/10.1039/B600027D.
S22 = {
    frozenset(pair.split("+"))
    for pair in words("""
    ammonia+ammonia water+water formic_acid+formic_acid formamide+formamide uracil+uracil
    pyridone+aminopyridine adenine+thymine methane+methane ethylene+ethylene benzene+methane
    benzene+benzene pyrazine+pyrazine indole+benzene ethylene+acetylene benzene+water
    benzene+ammonia benzene+hydrogen_cyanide phenol+phenol
    """)
}
