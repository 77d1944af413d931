from .ase_calculator import TensorNetCalculator as TensorNetCalculator
from .openmm.decoupling import decouple as decouple
from .openmm.decoupling import energy_derivatives as energy_derivatives
from .openmm.force import create_openmm_force as create_openmm_force
from .openmm.force import explain_openmm_route as explain_openmm_route
from .openmm.molecules import create_openmm_bonds as create_openmm_bonds
from .openmm.uncertainty import create_openmm_uncertainty as create_openmm_uncertainty
from .torch_sim_model import TorchSimModel as TorchSimModel
